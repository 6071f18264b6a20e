"""The commands of a testbed's processes: their start on the hosts, and the two ends of background traffic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jaxcomm.environment import HOST, RAILS, TESTBED, TESTBED_DELAY_S
from jaxcomm.testbed import state
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command, within
from jaxcomm.testbed.schema import CONTROL, Flow

TRAFFIC: Final = Path(__file__).with_name("traffic.py")
_ENTER: Final = Path(__file__).with_name("enter.py")
FLOW_PORT: Final = 7700  # port of the first flow; later flows have the following ports
_COORDINATOR_PORT: Final = 7600


def environments(layout: Layout) -> list[dict[str, str]]:
    """Returns the environment variables that the testbed adds to each process, host by host in the file's order."""
    testbed, found = layout.testbed, list[dict[str, str]]()
    for host in testbed.hosts:
        own = {
            TESTBED: layout.id,
            HOST: host.name,
            RAILS: ",".join(f"{rail.name}:{round(rail.mbit)}" for rail in testbed.rails),
            TESTBED_DELAY_S: f"{host.delay_s:g}",
        }
        found += [own] * host.processes
    return found


def coordinator(layout: Layout) -> str:
    """Returns "host:port" for `jax.distributed`: the first host's address in the control network."""
    return f"{layout.address(layout.testbed.hosts[0].name, CONTROL)}:{_COORDINATOR_PORT}"


def on_its_host(command: Sequence[str]) -> Command:
    """Returns a command that runs `command` on the host named by JAXCOMM_HOST, and ends with the same status."""
    return sys.executable, "-I", "-S", str(_ENTER), str(state.FOLDER), *command


def receive_flow(layout: Layout, flow: Flow, port: int) -> Command:
    """Returns the command that receives background traffic."""
    address = layout.address(flow.dst, layout.testbed.rail_of(flow))
    return within(layout.namespace(flow.dst), sys.executable, "-I", str(TRAFFIC), "receive", address, str(port))


def send_flow(layout: Layout, flow: Flow, port: int) -> Command:
    """Returns the command that sends background traffic."""
    address = layout.address(flow.dst, layout.testbed.rail_of(flow))
    seconds = [] if flow.stop_s is None else [f"{flow.stop_s - flow.start_s:g}"]
    command = (sys.executable, "-I", str(TRAFFIC), "send", address, str(port), *seconds)
    return within(layout.namespace(flow.src), *command)
