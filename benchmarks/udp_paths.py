"""Sums between two hosts behind four spines of unlike rates, one of which then fails. Needs root.

    python benchmarks/udp_paths.py
    python benchmarks/udp_paths.py --kinds "UDP, 24 paths" --mbit 100 --sums 100

The spines of a testbed's switch have --mbit, --mbit, --mbit and a quarter of --mbit. A hash of addresses and ports
selects the spine of a packet. After --sums sums the second spine loses all packets, for --sums further sums. Prints by
transport, before and after: median and 99 % of a sum's time, their ratio, and the rate of the median as a share of what
the spines that work carry together without headers. A transport whose connection crosses the failed spine stalls.
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import testbed_job

from jaxcomm import testbed
from jaxcomm.environment import TRANSPORT, UDP_PATHS
from jaxcomm.report.tables import table
from jaxcomm.testbed import SpineCounters, SpineState, Testbed

PROGRAM: Final = Path(__file__).with_name("udp_paths_job.py")
MTU: Final = 1500
ETHERNET: Final = 14  # bytes
SHARES: Final = (1.0, 1.0, 1.0, 0.25)  # rates of the spines
FAILED: Final = 1  # the spine that fails
WARM, FLOW_WARM = 8, 2  # sums that find the rates of several paths, or of one
STALLED_S: Final = 60.0


class Kind(NamedTuple):
    """How the processes sum: the transport, whose sum, the number of UDP paths, and the bytes in a full packet."""

    transport: str
    psum: str
    paths: int
    payload: int


class Found(NamedTuple):
    """The times of the sums before and after a spine fails, in seconds, and the spines' counters.

    There are fewer times if the job stalls.
    """

    whole: list[float]
    failed: list[float]
    spines: list[SpineCounters]


UDP_PAYLOAD: Final = MTU - 28 - 32
KINDS: Final[Mapping[str, Kind]] = {
    **{f"UDP, {paths} paths": Kind("udp", "jaxcomm", paths, UDP_PAYLOAD) for paths in (8, 16, 24, 32)},
    "UDP, 1 path": Kind("udp", "jaxcomm", 1, UDP_PAYLOAD),
    "TCP": Kind("tcp", "jaxcomm", 1, MTU - 52),
    "Gloo": Kind("tcp", "lax", 1, MTU - 52),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=25.0)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--sums", type=int, default=20)
    parser.add_argument("--kinds", default="UDP, 24 paths;UDP, 1 path;TCP;Gloo", help="with ; between them")
    args = parser.parse_args()
    rows = []
    for name in args.kinds.split(";"):
        found = sums_of(KINDS[name], args.mbit, args.mib, args.sums)
        print(f"{name}: MB over each spine:", *(f"{spine.bytes / 1e6:.0f}" for spine in found.spines), flush=True)
        rows.append((name, "all", *row(found.whole, KINDS[name], args, sum(SHARES))))
        rows.append((name, "one failed", *row(found.failed, KINDS[name], args, sum(SHARES) - SHARES[FAILED])))
    print(table(("", "spines", "sums", "median", "99 %", "99 % / median", "of the spines' rate"), rows))


def sums_of(kind: Kind, mbit: float, mib: int, sums: int) -> Found:
    """Runs one job, in which a spine fails after some sums."""
    racks = ("left", "right")
    wanted = Testbed.model_validate(
        {
            "mtu": MTU,
            "switch": {},
            "rails": [{"name": "eth0", "mbit": 2 * sum(SHARES) * mbit}],
            "racks": [{"name": rack} for rack in racks],
            "spines": [{"name": f"s{i}", "mbit": share * mbit} for i, share in enumerate(SHARES)],
            "hosts": [{"name": f"{rack}1", "rack": rack} for rack in racks],
        }
    )
    warm = WARM if kind.paths > 1 else FLOW_WARM
    with testbed.up(wanted) as layout:
        processes = testbed_job.start(
            layout,
            [str(PROGRAM), kind.psum, str(mib), str(warm + 2 * sums)],
            lambda process: subprocess.DEVNULL if process else subprocess.PIPE,
            errors=None,
            further={TRANSPORT: kind.transport, UDP_PATHS: str(kind.paths)},
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(processes[0], lines), daemon=True).start()
        try:
            found: list[float] = []
            while len(found) < warm + 2 * sums:
                line = lines.get(timeout=STALLED_S if found else 2 * STALLED_S)
                found += [float(line.split()[1])] if line.startswith("@sum ") else []
                if len(found) == warm + sums:
                    testbed.set_spine(layout, SpineState(f"s{FAILED}", SHARES[FAILED] * mbit, 1.0))
        except queue.Empty:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return Found(found[warm : warm + sums], found[warm + sums :], testbed.spine_counters(layout))


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    for line in process.stdout or ():
        lines.put(line)


def row(seconds: Sequence[float], kind: Kind, args: argparse.Namespace, shares: float) -> tuple[str, ...]:
    if not seconds:
        return "0", "stalled", "", "", ""
    median, late = np.median(seconds), np.percentile(seconds, 99)
    wire_s = (args.mib << 20) / (shares * args.mbit * 125e3 * kind.payload / (MTU + ETHERNET))
    milliseconds = (f"{1e3 * each:.0f} ms" for each in (median, late))
    return str(len(seconds)), *milliseconds, f"{late / median:.2f}", f"{wire_s / median:.1%}"


if __name__ == "__main__":
    main()
