"""The processes of a testbed: on which host each runs, by which command, and with which environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jaxcomm.testbed import state
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command, within
from jaxcomm.testbed.schema import CONTROL, Flow

TRAFFIC: Final = Path(__file__).with_name("traffic.py")
FLOW_PORT: Final = 7700  # and those above it, one for each flow
_COORDINATOR_PORT: Final = 7600
# A name of its own makes a host another one for jax and MPI; by the file they find it in the first rail.
_ENTER: Final = 'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts || exit 125; shift 2; exec "$@"'


class Process(NamedTuple):
    """One process: its number in the job, its host, its command and what it adds to the environment."""

    id: int
    host: str
    command: Command
    environment: dict[str, str]


def processes(layout: Layout, command: Sequence[str]) -> list[Process]:
    """One process per place of every host, in the file's order; process 0 is the coordinator of `jax.distributed`."""
    coordinator = f"{layout.address(layout.testbed.hosts[0].name, CONTROL)}:{_COORDINATOR_PORT}"
    found: list[Process] = []
    for host in layout.testbed.hosts:
        for local in range(host.processes):
            environment = {
                # jax.distributed.initialize() takes these for Open MPI's.
                "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{coordinator}",
                "OMPI_COMM_WORLD_SIZE": str(layout.testbed.processes),
                "OMPI_COMM_WORLD_RANK": str(len(found)),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
                "JAX_COORDINATOR_ADDRESS": coordinator,
                "JAXCOMM_HOST": host.name,
                "JAXCOMM_INTERFACE": layout.testbed.rails[0].name,
                "JAXCOMM_TESTBED_DELAY_S": f"{host.delay_s:g}",
            }
            found.append(Process(len(found), host.name, on_host(layout, host.name, *command), environment))
    return found


def on_host(layout: Layout, host: str, *command: str) -> Command:
    """A command that runs on a host: in its namespace, with its name and its /etc/hosts."""
    enter = ("unshare", "--uts", "sh", "-c", _ENTER, "sh", host, str(state.hosts_file(layout.id)))
    return within(layout.namespace(host), *enter, *command)


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
