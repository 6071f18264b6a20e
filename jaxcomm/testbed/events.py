"""Events of a testbed while its processes run: flows start, and links are cut and repaired."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from jaxcomm.testbed import network, packet_switch
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command
from jaxcomm.testbed.packet_switch import LinkState, SpineState
from jaxcomm.testbed.processes import FLOW_PORT, receive_flow, send_flow

_TIMEOUT_S: Final = 20


class Event(NamedTuple):
    """A command that runs `at_s` seconds after the start.

    If `stays` is true, the command runs in the background until the testbed ends. An event with `link` or `spine` has
    no command. Instead, the packet switch applies the given state to the link or to the spine's links.
    """

    at_s: float
    text: str
    command: Command = ()
    stays: bool = False
    link: LinkState | None = None
    spine: SpineState | None = None


def timeline(layout: Layout) -> list[Event]:
    """Returns all events in order of time."""
    events = []
    for i, flow in enumerate(layout.testbed.flows):
        port, rail = FLOW_PORT + i, layout.testbed.rail_of(flow)
        text = f"traffic from {flow.src} to {flow.dst} over {rail}"
        for command in (receive_flow(layout, flow, port), send_flow(layout, flow, port)):
            events.append(Event(flow.start_s, f"{text} starts", command, stays=True))
    for cut in layout.testbed.cuts:
        rail = layout.testbed.rail_of(cut)
        link = f"the link of {cut.host} to {rail} is"
        done = [(cut.at_s, f"{link} cut ({cut.kind})", network.cut(layout, cut), packet_switch.damaged(layout, cut))]
        if cut.repaired_s is not None:
            whole = packet_switch.intact(layout, cut.host, rail)
            done.append((cut.repaired_s, f"{link} repaired", network.repair(layout, cut), whole))
        for at_s, text, commands, state in done:
            events += [Event(at_s, text, command) for command in commands]
            events += [Event(at_s, text, link=state)] if layout.testbed.switch else []
    for spine in layout.testbed.spines:
        for spine_cut in spine.cuts:
            how = "fails" if spine_cut.mbit is None else f"has {spine_cut.mbit:g} Mbit/s"
            failed = packet_switch.failed(spine, spine_cut)
            events.append(Event(spine_cut.at_s, f"the spine {spine.name} {how}", spine=failed))
            if spine_cut.repaired_s is not None:
                repaired = SpineState(spine.name, spine.mbit, 0.0)
                events.append(Event(spine_cut.repaired_s, f"the spine {spine.name} is repaired", spine=repaired))
    return sorted(events, key=lambda event: event.at_s)


@contextlib.contextmanager
def happening(layout: Layout) -> Iterator[None]:
    """Runs the events on a thread until the block ends. Prints each event on standard error."""
    end, start = threading.Event(), time.monotonic()

    def run() -> None:
        printed = ""
        for event in timeline(layout):
            if end.wait(max(0.0, start + event.at_s - time.monotonic())):
                return
            if event.text != printed:
                print(f"testbed: {time.monotonic() - start:.1f} s: {event.text}", file=sys.stderr, flush=True)
            printed = event.text
            carry_out(layout, event)

    thread = threading.Thread(target=run, name="testbed events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def carry_out(layout: Layout, event: Event) -> None:
    """Carries out an event now."""
    if event.link is not None:
        packet_switch.set_link(layout, event.link)
    elif event.spine is not None:
        packet_switch.set_spine(layout, event.spine)
    elif event.stays:  # the command runs until the testbed kills it
        subprocess.Popen(event.command, stdout=subprocess.DEVNULL)
    else:
        done = subprocess.run(event.command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            print(f"testbed: this failed: {done.stderr.strip()}", file=sys.stderr, flush=True)
