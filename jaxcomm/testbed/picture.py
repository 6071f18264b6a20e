"""A testbed as a tree of text."""

from __future__ import annotations

from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.schema import TestbedHost
from jaxcomm.testbed.switch_schema import TestbedSwitch


def picture(layout: Layout) -> str:
    """Draws the rails, then every host with its processes and faults, below the host's rack if there are racks."""
    testbed = layout.testbed
    size = f"{_count(len(testbed.hosts), 'host')}, {_count(testbed.processes, 'process')}"
    lines = [f"testbed {layout.id}: {size}, {testbed.congestion_control}, MTU {testbed.mtu}"]
    lines += [f"rail {rail.name}: {layout.subnet(rail.name)}, {rail.mbit:g} Mbit/s per host" for rail in testbed.rails]
    if testbed.switch is not None:
        lines.append(_switch(testbed.switch))
    for spine in testbed.spines:
        cuts = [
            f", {'fails' if cut.mbit is None else f'{cut.mbit:g} Mbit/s'} {_span(cut.at_s, cut.repaired_s)}"
            for cut in spine.cuts
        ]
        lines.append(f"spine {spine.name}: {spine.mbit:g} Mbit/s per rack{''.join(cuts)}")
    lines += [
        f"traffic: {flow.src} → {flow.dst} over {testbed.rail_of(flow)}, {_span(flow.start_s, flow.stop_s)}"
        for flow in testbed.flows
    ]
    if not testbed.racks:
        return "\n".join([*lines, *_branches([[_host(layout, host)] for host in testbed.hosts])])
    racks = []
    for rack in testbed.racks:
        inside = _branches([[_host(layout, host)] for host in testbed.hosts if host.rack == rack.name])
        uplink = "leaf switch, no uplink" if rack.uplink_mbit is None else f"uplink {rack.uplink_mbit:g} Mbit/s"
        racks.append([f"rack {rack.name}: {uplink}", *inside])
    return "\n".join([*lines, *_branches(racks)])


def _switch(switch: TestbedSwitch) -> str:
    thresholds = ", ".join(map(str, switch.ordinary))
    of_plan = f", of {switch.plan}" if switch.plan else ""
    return f"switch: {switch.buffer_bytes} bytes per port; ordinary packets by priority: {thresholds}{of_plan}"


def _branches(children: list[list[str]]) -> list[str]:
    lines = []
    for i, (head, *below) in enumerate(children):
        last = i == len(children) - 1
        lines.append(f"{'└─' if last else '├─'} {head}")
        lines += [f"{'  ' if last else '│ '} {line}" for line in below]
    return lines


def _host(layout: Layout, host: TestbedHost) -> str:
    testbed = layout.testbed
    first = sum(other.processes for other in testbed.hosts[: testbed.hosts.index(host)])
    last = first + host.processes - 1
    parts = [f"{host.name}: process{'' if first == last else 'es'} {first}{'' if first == last else f'–{last}'}"]
    parts += [f"late by {1e3 * host.delay_s:g} ms"] if host.delay_s else []
    parts += [
        f"{testbed.rail_of(loss)} loses {100 * loss.rate:g} % of packets"
        for loss in testbed.packet_loss
        if loss.host == host.name
    ]
    parts += [
        f"{testbed.rail_of(cut)} cut ({cut.kind}) {_span(cut.at_s, cut.repaired_s)}"
        for cut in testbed.cuts
        if cut.host == host.name
    ]
    return ", ".join(parts)


def _span(start_s: float, end_s: float | None) -> str:
    return f"from {start_s:g} s" + ("" if end_s is None else f" to {end_s:g} s")


def _count(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"
