"""The processes of a testbed: their start on its hosts, and the two ends of background traffic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jaxcomm.environment import HOST, RAILS, TESTBED, TESTBED_DELAY_S
from jaxcomm.testbed import state
from jaxcomm.testbed.layout import PREFIX, Layout
from jaxcomm.testbed.network import Command, within
from jaxcomm.testbed.schema import CONTROL, Flow

TRAFFIC: Final = Path(__file__).with_name("traffic.py")
FLOW_PORT: Final = 7700  # and those above it, one for each flow
_COORDINATOR_PORT: Final = 7600
# A name of its own makes a host another one for jax and MPI; by the file they find it in the first rail.
_ON_HOST: Final = (
    'echo "$JAXCOMM_HOST" > /proc/sys/kernel/hostname && '
    f'mount --bind "{state.FOLDER}/$JAXCOMM_TESTBED.hosts" /etc/hosts || exit 125; exec "$@"'
)
_ENTER: Final = f'exec ip netns exec "{PREFIX}$JAXCOMM_TESTBED-$JAXCOMM_HOST" unshare --uts sh -c "$0" sh "$@"'


def environments(layout: Layout) -> list[dict[str, str]]:
    """The testbed's variables in each process's environment, host by host in the file's order."""
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
    """ "host:port" for `jax.distributed`, in the control network of the first process's host."""
    return f"{layout.address(layout.testbed.hosts[0].name, CONTROL)}:{_COORDINATOR_PORT}"


def on_its_host(command: Sequence[str]) -> Command:
    """The command that runs another one on the host of its environment: in its namespace, with its name and hosts."""
    return "sh", "-c", _ENTER, _ON_HOST, *command


def hosts_text(layout: Layout) -> str:
    """The /etc/hosts of all hosts: the name of each is its address in the first rail."""
    rail = layout.testbed.rails[0].name
    lines = [f"{layout.address(host.name, rail)} {host.name}" for host in layout.testbed.hosts]
    return "\n".join(["127.0.0.1 localhost", *lines, ""])


def receive_flow(layout: Layout, flow: Flow, port: int) -> Command:
    """The receiving end of background traffic."""
    address = layout.address(flow.dst, layout.testbed.rail_of(flow))
    return within(layout.namespace(flow.dst), sys.executable, "-I", str(TRAFFIC), "receive", address, str(port))


def send_flow(layout: Layout, flow: Flow, port: int) -> Command:
    """Its sending end."""
    address = layout.address(flow.dst, layout.testbed.rail_of(flow))
    seconds = [] if flow.stop_s is None else [f"{flow.stop_s - flow.start_s:g}"]
    command = (sys.executable, "-I", str(TRAFFIC), "send", address, str(port), *seconds)
    return within(layout.namespace(flow.src), *command)
