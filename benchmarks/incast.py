"""Several hosts send to one at once, into a shallow queue: over UDP, TCP CUBIC and TCP BBR, by turns. Needs root.

    python benchmarks/incast.py --senders 3
    python benchmarks/incast.py --senders 7 --rounds 6

A testbed's switch, whose ports have buffers of 64 KiB, connects hosts of 200 Mbit/s. Every process but the first sends
the first one a message (`benchmarks/incast_job.py`). Prints by transport and size: the arrival time of the last message
(mean, median and 99 %); the goodput until then, as a share of the line's rate without headers; and Jain's index of the
senders' throughputs (least and median). Prints by transport: the share of bytes that were sent to the receiver's port
beyond one copy of each message, and the share of packets that this port dropped.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import testbed_job

from jaxcomm import testbed
from jaxcomm.environment import TRANSPORT
from jaxcomm.report.tables import table
from jaxcomm.testbed import Testbed

PROGRAM: Final = Path(__file__).with_name("incast_job.py")
MBIT: Final = 200.0
BUFFER_BYTES: Final = 64 << 10
MTU: Final = 1500
ETHERNET: Final = 14  # bytes
JOB_S: Final = 150.0


class Kind(NamedTuple):
    """A transport, TCP's congestion control, and the bytes of a message in a full packet."""

    transport: str
    congestion_control: Literal["cubic", "bbr"]
    payload: int


KINDS: Final = {
    "UDP": Kind("udp", "cubic", MTU - 28 - 32),
    "TCP CUBIC": Kind("tcp", "cubic", MTU - 52),
    "TCP BBR": Kind("tcp", "bbr", MTU - 52),
}


class Offered(NamedTuple):
    """At the receiver's port: bytes sent (with headers), packets sent, packets dropped, and the messages' bytes."""

    bytes: int
    packets: int
    drops: int
    messages: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--senders", type=int, default=3)
    parser.add_argument("--mib", default="1,4")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    sizes = [int(mib) for mib in args.mib.split(",")]
    kinds = args.kinds.split(",")
    times: dict[tuple[str, int], list[list[float]]] = {(kind, mib): [] for kind in kinds for mib in sizes}
    offered: dict[str, list[Offered]] = {kind: [] for kind in kinds}
    for _ in range(args.turns):
        for kind in kinds:
            found, port = launched(KINDS[kind], args.senders, sizes, args.rounds)
            offered[kind].append(port)
            for mib, seconds in found:
                times[kind, mib].append(seconds)
    rows = [row(kind, mib, each) for (kind, mib), each in times.items()]
    head = ("", "MiB", "last message: mean", "median", "99 %", "goodput", "Jain: least", "median")
    print(f"{args.senders} to one:", table(head, rows), sep="\n")
    for kind, ports in offered.items():
        print(f"{kind}: {resent(KINDS[kind], ports):.1%} sent again, {dropped(ports):.1%} dropped")


def launched(
    kind: Kind, senders: int, sizes: Sequence[int], rounds: int
) -> tuple[list[tuple[int, list[float]]], Offered]:
    """Runs one job. Returns the seconds of every sender by size and round, and the receiver's port's counters."""
    hosts = Testbed.model_validate(
        {
            "mtu": MTU,
            "congestion_control": kind.congestion_control,
            "switch": {"buffer_bytes": BUFFER_BYTES, "threshold_bytes": BUFFER_BYTES},
            "rails": [{"name": "eth0", "mbit": MBIT}],
            "hosts": [{"name": f"h{i}"} for i in range(senders + 1)],
        }
    )
    with testbed.up(hosts) as layout:
        processes = testbed_job.start(
            layout,
            [str(PROGRAM), ",".join(map(str, sizes)), str(rounds)],
            lambda process: subprocess.DEVNULL if process else subprocess.PIPE,
            errors=None,
            further={TRANSPORT: kind.transport},
        )
        try:
            lines = processes[0].communicate(timeout=JOB_S)[0].splitlines()
            if any(process.wait(JOB_S) for process in processes):
                raise SystemExit("a process failed; see its error above")
        finally:
            for process in processes:
                process.kill()
        queues = [queue for queue in testbed.queue_counters(layout) if queue.host == hosts.hosts[0].name]
    messages = senders * (rounds + 2) * sum(mib << 20 for mib in sizes)
    port = Offered(
        sum(queue.bytes for queue in queues),
        sum(queue.packets for queue in queues),
        sum(queue.ordinary_drops + queue.important_drops for queue in queues),
        messages,
    )
    found = [line.split()[1:] for line in lines if line.startswith("@incast ")]
    return [(int(mib), [float(each) for each in seconds]) for mib, *seconds in found], port


def row(kind: str, mib: int, rounds: Sequence[Sequence[float]]) -> tuple[str, ...]:
    last = [max(seconds) for seconds in rounds]
    line = MBIT * 125e3 * KINDS[kind].payload / (MTU + ETHERNET)
    goodput = [len(seconds) * (mib << 20) / (max(seconds) * line) for seconds in rounds]
    jain = [sum(1 / t for t in seconds) ** 2 / (len(seconds) * sum(t**-2 for t in seconds)) for seconds in rounds]
    milliseconds = (1e3 * each for each in (np.mean(last), np.median(last), np.percentile(last, 99)))
    return (
        kind,
        str(mib),
        *(f"{each:.0f} ms" for each in milliseconds),
        f"{statistics.mean(goodput):.1%}",
        f"{min(jain):.3f}",
        f"{statistics.median(jain):.3f}",
    )


def resent(kind: Kind, ports: Sequence[Offered]) -> float:
    """Bytes in excess of one copy of each message, as a share of that copy; a dropped packet counts as full."""
    once = sum(port.messages for port in ports) * (MTU + ETHERNET) / kind.payload
    return sum(port.bytes + port.drops * (MTU + ETHERNET) for port in ports) / once - 1


def dropped(ports: Sequence[Offered]) -> float:
    return sum(port.drops for port in ports) / sum(port.packets + port.drops for port in ports)


if __name__ == "__main__":
    main()
