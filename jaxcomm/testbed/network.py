"""The commands that make a testbed's network, and that cut and repair a link. Nothing here runs the commands.

HTB limits the rates of outgoing packets: at the host, at the switch's port to the host, and at both ends of an uplink.
With jaxcomm's own switch, a host's link is a TAP device whose other end is in the switch (`packet_switch.py`). The
switch then applies the rates and losses at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.schema import CONTROL, Cut, LossyLink, TestbedHost, TestbedRail

Command = tuple[str, ...]

TABLE: Final = "loss"  # an nftables table in a testbed's namespace
_CUT_TABLE: Final = "cut"
_SLOWEST: Final = ("8kbit", "1600")  # rate of a "slow" cut without `mbit`, and a burst of one packet
_QUEUE_BYTES: Final = 512 * 1024  # size of each shaped link's queue
_FIFO: Final = ("10:", "bfifo", "limit", str(_QUEUE_BYTES))
_LEAST_BURST: Final = 16 * 1024  # bytes; with a smaller burst HTB falls short of its rate
_BURST_S: Final = 100e-6  # maximum delay of a timer, in seconds, that the burst compensates
_BRIDGE: Final = ("type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port


def build(layout: Layout) -> Iterator[Command]:
    """Returns the commands that make namespaces, bridges, links, shapers and losses, in order."""
    testbed = layout.testbed
    for namespace in layout.namespaces:
        yield "ip", "netns", "add", namespace
        settings = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        yield within(namespace, "sysctl", "-eqw", *settings, "net.ipv4.tcp_no_metrics_save=1")
        yield "ip", "-n", namespace, "link", "set", "lo", "up"
    yield from _bridge(layout, layout.core(CONTROL))
    for rail in testbed.rails:
        if testbed.switch is not None:
            continue
        yield from _bridge(layout, layout.core(rail.name))
        for rack in testbed.racks:
            assert rack.uplink_mbit is not None  # without spines, the schema requires `uplink_mbit`
            yield from _bridge(layout, layout.rack_bridge(rack.name, rail.name))
            yield from _uplink(layout, rack.name, rail.name, rack.uplink_mbit)
    for host in testbed.hosts:
        yield from _link(layout, host, CONTROL, 1500)
        for rail in testbed.rails:
            yield from (_tap if testbed.switch else _link)(layout, host, rail.name, testbed.mtu)
            yield from _shaped(layout, host, rail)
    if testbed.switch is None:
        for loss in testbed.packet_loss:
            yield from _lossy(layout, loss)


def cut(layout: Layout, cut: Cut) -> list[Command]:
    """Returns the commands that cut a host's link. A packet switch cuts its own end (`packet_switch.damaged`)."""
    rail, namespace = layout.testbed.rail_of(cut), layout.namespace(cut.host)
    match cut.kind:
        case "silent" | "down":
            return _set_link(layout, cut, is_up=False)
        case "slow":
            # TBF is used, because an HTB class at a lower rate would stay in debt for earlier bytes after the repair.
            rate, burst = _SLOWEST if cut.mbit is None else _rate(cut.mbit)
            slow = ("11:", "tbf", "rate", rate, "burst", burst, "limit", str(_QUEUE_BYTES))
            return [_queue(*end, "replace", *slow) for end in _ends(layout, cut.host, rail)]
        case "one-way":
            return [_filter(namespace, "netdev", rail, f'ingress device "{rail}" priority 0; policy drop;')]
        case "no-udp":
            hook = f'ingress device "{rail}" priority 0; policy accept;'
            return [_filter(namespace, "netdev", rail, hook, "ip protocol udp drop")]
        case "reset":
            rule = f'iifname "{rail}" meta l4proto tcp reject with tcp reset'
            return [_filter(namespace, "inet", rail, "input priority 0; policy accept;", rule)]
        case "renumbered":
            return _renumber(layout, cut, layout.address(cut.host, rail), layout.second_address(cut.host, rail))


def _filter(namespace: str, family: str, rail: str, hook: str, rule: str = "") -> Command:
    """Returns the command that adds a chain, named after the rail, to a namespace's table of cuts."""
    chain = f"{family} {_CUT_TABLE} {rail}"
    added = f"add table {family} {_CUT_TABLE}; add chain {chain} {{ type filter hook {hook} }}"
    return within(namespace, "nft", added + (f"; add rule {chain} {rule}" if rule else ""))


def repair(layout: Layout, cut: Cut) -> list[Command]:
    """Returns the commands that repair a host's link. A packet switch repairs its own end (`packet_switch.intact`)."""
    rail, namespace = layout.testbed.rail_of(cut), layout.namespace(cut.host)
    match cut.kind:
        case "silent" | "down":
            return _set_link(layout, cut, is_up=True)
        case "slow":
            return [_queue(*end, "replace", *_FIFO) for end in _ends(layout, cut.host, rail)]
        case "one-way" | "no-udp":
            return [within(namespace, "nft", f"delete chain netdev {_CUT_TABLE} {rail}")]
        case "reset":
            return [within(namespace, "nft", f"delete chain inet {_CUT_TABLE} {rail}")]
        case "renumbered":
            return _renumber(layout, cut, layout.second_address(cut.host, rail), layout.address(cut.host, rail))


def _set_link(layout: Layout, cut: Cut, *, is_up: bool) -> list[Command]:
    """Returns the commands that stop or resume a link. A silent cut keeps the carrier on, a cut "down" turns it off."""
    rail, switch = layout.testbed.rail_of(cut), layout.testbed.switch
    port = layout.port(cut.host, rail)
    if cut.kind == "silent":
        state = _FORWARDING if is_up else _DISABLED
        return [] if switch else [("bridge", "-n", layout.switch, "link", "set", "dev", port, "state", state)]
    if switch:
        return [("ip", "-n", layout.namespace(cut.host), "link", "set", rail, "carrier", "on" if is_up else "off")]
    return [("ip", "-n", layout.switch, "link", "set", port, "up" if is_up else "down")]


def _renumber(layout: Layout, cut: Cut, before: str, after: str) -> list[Command]:
    """Returns the commands that give a host's interface another address."""
    rail = layout.testbed.rail_of(cut)
    ip = ("ip", "-n", layout.namespace(cut.host))
    source = ("src", after, "congctl", layout.testbed.congestion_control)
    mac = ("lladdr", layout.mac(cut.host, rail), "dev", rail, "nud", "permanent")
    others = [layout.namespace(other.name) for other in layout.testbed.hosts if other.name != cut.host]
    return [
        (*ip, "addr", "del", f"{before}/24", "dev", rail),
        (*ip, "addr", "add", f"{after}/24", "dev", rail),
        (*ip, "route", "change", layout.subnet(rail), "dev", rail, *source),
        *(("ip", "-n", other, "neigh", "replace", after, *mac) for other in others),
    ]


def within(namespace: str, *command: str) -> Command:
    """Returns the command that runs `command` in a namespace."""
    return "ip", "netns", "exec", namespace, *command


def _bridge(layout: Layout, name: str) -> Iterator[Command]:
    yield "ip", "-n", layout.switch, "link", "add", name, *_BRIDGE
    yield "ip", "-n", layout.switch, "link", "set", name, "up"


def _uplink(layout: Layout, rack: str, rail: str, mbit: float) -> Iterator[Command]:
    up, down = layout.uplink(rack, rail)
    mtu = ("mtu", str(layout.testbed.mtu))
    yield "ip", "-n", layout.switch, "link", "add", up, *mtu, "type", "veth", "peer", "name", down, *mtu
    for end, bridge in ((up, layout.rack_bridge(rack, rail)), (down, layout.core(rail))):
        yield "ip", "-n", layout.switch, "link", "set", end, "master", bridge, "up"
        yield from _shape(layout.switch, end, mbit)


def _link(layout: Layout, host: TestbedHost, network: str, mtu: int) -> Iterator[Command]:
    namespace, port = layout.namespace(host.name), layout.port(host.name, network)
    end = ("name", network, "netns", namespace, "address", layout.mac(host.name, network), "mtu", str(mtu))
    yield "ip", "-n", layout.switch, "link", "add", port, "mtu", str(mtu), "type", "veth", "peer", *end
    yield "ip", "-n", layout.switch, "link", "set", port, "master", layout.bridge(host.name, network), "up"
    yield from _addressed(layout, host, network)


def _tap(layout: Layout, host: TestbedHost, network: str, mtu: int) -> Iterator[Command]:
    namespace = layout.namespace(host.name)
    yield "ip", "-n", namespace, "tuntap", "add", "dev", network, "mode", "tap"
    address = ("address", layout.mac(host.name, network), "mtu", str(mtu))
    yield "ip", "-n", namespace, "link", "set", network, *address
    yield from _addressed(layout, host, network)


def _addressed(layout: Layout, host: TestbedHost, network: str) -> Iterator[Command]:
    namespace = layout.namespace(host.name)
    yield "ip", "-n", namespace, "addr", "add", f"{layout.address(host.name, network)}/24", "dev", network
    yield "ip", "-n", namespace, "link", "set", network, "up"
    for other in layout.testbed.hosts:  # fixed neighbours avoid ARP, whose packets may be lost
        if other is not host:
            neighbour = (layout.address(other.name, network), "lladdr", layout.mac(other.name, network))
            yield "ip", "-n", namespace, "neigh", "replace", *neighbour, "dev", network, "nud", "permanent"


def _shaped(layout: Layout, host: TestbedHost, rail: TestbedRail) -> Iterator[Command]:
    namespace = layout.namespace(host.name)
    # The route sets the congestion control, because sysctl may forbid it outside the initial network namespace.
    source = ("src", layout.address(host.name, rail.name), "congctl", layout.testbed.congestion_control)
    yield "ip", "-n", namespace, "route", "change", layout.subnet(rail.name), "dev", rail.name, *source
    for end in _ends(layout, host.name, rail.name):
        yield from _shape(*end, rail.mbit)


def _shape(namespace: str, device: str, mbit: float) -> Iterator[Command]:
    rate, burst = _rate(mbit)
    tc, to = ("tc", "-n", namespace), ("dev", device)
    yield *tc, "qdisc", "add", *to, "root", "handle", "1:", "htb", "default", "1"
    limits = ("rate", rate, "ceil", rate, "burst", burst, "cburst", burst, "quantum", "60000")
    yield *tc, "class", "add", *to, "parent", "1:", "classid", "1:1", "htb", *limits
    yield _queue(namespace, device, "add", *_FIFO)


def _rate(mbit: float) -> tuple[str, str]:
    """Returns a rate, and its burst in bytes."""
    return f"{round(mbit * 1e6)}bit", str(max(_LEAST_BURST, round(mbit * 1e6 / 8 * _BURST_S)))


def _queue(namespace: str, device: str, verb: str, handle: str, *kind: str) -> Command:
    return "tc", "-n", namespace, "qdisc", verb, "dev", device, "parent", "1:1", "handle", handle, *kind


def _ends(layout: Layout, host: str, rail: str) -> list[tuple[str, str]]:
    """Returns the ends of a host's link at which the kernel shapes the rate, as pairs of namespace and interface."""
    ends = [(layout.namespace(host), rail)]
    return ends if layout.testbed.switch else [*ends, (layout.switch, layout.port(host, rail))]


def _lossy(layout: Layout, loss: LossyLink) -> Iterator[Command]:
    rail = layout.testbed.rail_of(loss)
    for namespace, device in _ends(layout, loss.host, rail):
        # Without this limit, one random loss could drop an offloaded frame of 64 KiB, which is 45 packets.
        yield "ip", "-n", namespace, "link", "set", "dev", device, "gso_max_segs", "1"
        hook = f'type filter hook ingress device "{device}" priority 0; policy accept;'
        rule = f"numgen random mod 1000000 < {round(loss.rate * 1e6)} counter drop"
        chain = f"netdev {TABLE} {device}"
        yield within(
            namespace, "nft", f"add table netdev {TABLE}; add chain {chain} {{ {hook} }}; add rule {chain} {rule}"
        )
