"""Runs a testbed's switch. A thread of a separate library in this process connects the hosts' TAP devices.

The switch ends when the testbed or this process ends. The devices are removed with their namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from jaxcomm.ffi.core import TEXT, Core
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.schema import Cut, SpineCut, TestbedSpine
from jaxcomm.testbed.switch_schema import PRIORITIES

_BYTES_PER_MBIT: Final = 125_000
_SLOWEST_MBIT: Final = 0.008

_LIBRARY: Final = Core(
    "testbed library",
    Path(__file__).parent / "libjaxcomm_testbed.so",
    {
        "packet_switch_start": (
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int64),
        ),
        "packet_switch_stop": (ctypes.c_char_p,),
        "packet_switch_set_link": (ctypes.c_char_p, ctypes.c_int64, ctypes.c_double, ctypes.c_double),
        "packet_switch_set_spine": (ctypes.c_char_p, ctypes.c_int64, ctypes.c_double, ctypes.c_double),
        "packet_switch_report": (ctypes.c_char_p, TEXT),
    },
    cure="install the package (`make setup`)",
)


class LinkState(NamedTuple):
    """A host's link to a rail: its rate and the share of packets that it loses, in each direction."""

    host: str
    rail: str
    mbit: float
    loss: float


class SpineState(NamedTuple):
    """The links of a spine: their rate and the share of packets that they lose, in each direction."""

    spine: str
    mbit: float
    loss: float


class SpineCounters(NamedTuple):
    """A spine: the packets and bytes that it has passed on, and the packets that it has dropped or lost at random."""

    spine: str
    packets: int
    bytes: int
    drops: int
    random_losses: int


class QueueCounters(NamedTuple):
    """A queue of the switch's port to a host: the packets that it has sent and dropped, and their times in the queue.

    Bytes include headers. A packet's time in the queue ends when its first byte leaves. `p99_s` exceeds the true value
    by at most 1/16.
    """

    host: str
    rail: str
    priority: int
    packets: int
    bytes: int
    ordinary_drops: int
    important_drops: int
    mean_s: float
    p99_s: float
    max_s: float


@contextlib.contextmanager
def running(layout: Layout) -> Iterator[None]:
    """Runs the switch within the block, if the testbed has one.

    Raises:
      JaxcommError: a device of a host cannot be opened.
    """
    testbed = layout.testbed
    if testbed.switch is None:
        yield
        return
    links = [_line(layout, intact(layout, host, rail)) for host, rail in _ports(layout)]
    spines = [f"{_BYTES_PER_MBIT * spine.mbit!r} 0" for spine in testbed.spines]
    limits = (ctypes.c_int64 * (2 * PRIORITIES))(*testbed.switch.ordinary, *testbed.switch.important)
    lines = ("\n".join(links), "\n".join(spines))
    _LIBRARY.call("packet_switch_start", layout.id, *lines, testbed.mtu, testbed.switch.buffer_bytes, limits)
    try:
        yield
    finally:
        _LIBRARY.call("packet_switch_stop", layout.id)


def intact(layout: Layout, host: str, rail: str) -> LinkState:
    """Returns the state that the testbed file gives a link."""
    testbed = layout.testbed
    mbit = next(each.mbit for each in testbed.rails if each.name == rail)
    losses = {(loss.host, testbed.rail_of(loss)): loss.rate for loss in testbed.packet_loss}
    return LinkState(host, rail, mbit, losses.get((host, rail), 0.0))


def damaged(layout: Layout, cut: Cut) -> LinkState:
    """Returns the state of the switch's end of a link during a cut. `network.cut` cuts the host's end."""
    before = intact(layout, cut.host, layout.testbed.rail_of(cut))
    match cut.kind:
        case "silent" | "down":
            return before._replace(loss=1.0)
        case "slow":
            return before._replace(mbit=_SLOWEST_MBIT if cut.mbit is None else cut.mbit)
        case "one-way" | "reset" | "no-udp" | "renumbered":
            return before


def set_link(layout: Layout, link: LinkState) -> None:
    """Sets the rate and loss of a link of the running switch."""
    port = _ports(layout).index((link.host, link.rail))
    _LIBRARY.call("packet_switch_set_link", layout.id, port, _BYTES_PER_MBIT * link.mbit, link.loss)


def set_spine(layout: Layout, state: SpineState) -> None:
    """Sets the rate and loss of a spine's links."""
    number = [spine.name for spine in layout.testbed.spines].index(state.spine)
    _LIBRARY.call("packet_switch_set_spine", layout.id, number, _BYTES_PER_MBIT * state.mbit, state.loss)


def failed(spine: TestbedSpine, cut: SpineCut) -> SpineState:
    """Returns the state of a spine during a cut."""
    return SpineState(spine.name, spine.mbit, 1.0) if cut.mbit is None else SpineState(spine.name, cut.mbit, 0.0)


def report(layout: Layout) -> dict[tuple[str, str], dict[str, Any]]:
    """The counters of the running switch, by host and rail."""
    return dict(zip(_ports(layout), _report(layout)["ports"], strict=True))


def spine_counters(layout: Layout) -> list[SpineCounters]:
    """Returns the counters of all spines, in the file's order."""
    if not layout.testbed.spines:
        return []
    counters = zip(layout.testbed.spines, _report(layout)["spines"], strict=True)
    return [SpineCounters(spine.name, **counts) for spine, counts in counters]


def _report(layout: Layout) -> Any:
    return json.loads(_LIBRARY.text("packet_switch_report", layout.id))


def queue_counters(layout: Layout) -> list[QueueCounters]:
    """Returns the queues that have received packets.

    Ports are in the file's order. The queues of a port begin with the highest priority.
    """
    if layout.testbed.switch is None:
        return []
    return [
        QueueCounters(host, rail, **queue)
        for (host, rail), port in report(layout).items()
        for queue in reversed(port["queues"])
    ]


def _ports(layout: Layout) -> list[tuple[str, str]]:
    return [(host.name, rail.name) for host in layout.testbed.hosts for rail in layout.testbed.rails]


def _line(layout: Layout, link: LinkState) -> str:
    address = int(layout.mac(link.host, link.rail).replace(":", ""), 16)
    rate = _BYTES_PER_MBIT * link.mbit
    leaf = layout.leaf(link.host, link.rail)
    return f"{layout.namespace(link.host)} {link.rail} {address} {rate!r} {link.loss!r} {leaf}"
