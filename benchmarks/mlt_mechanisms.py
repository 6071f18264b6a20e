"""MLT's three mechanisms, each on and off: drops within a bound, priorities and selective drops, several paths.

    python benchmarks/mlt_mechanisms.py --out mechanisms.json

As root. Four hosts in two racks, behind four spines of unlike rates, whose switches have small buffers, average the
gradients of eight layers over UDP. The mechanisms, as in the paper's figures 16 and 17:

- A: up to --bound of each layer may stay lost. Without A sums are exact, but with B one segment of a layer may be lost.
- B: each layer has a priority, and its packets carry it; the switches have a queue for each priority, and drop packets
  of unimportant segments earlier than others. Without B all packets have one queue, which drops them alike.
- C: the packets of a flow take --paths paths. Without C a hash selects one spine for a flow.

Prints for each combination, and for exact sums over TCP: the median and the 99 % of a mean's times, the lost share of
process 0's bytes, with B the times until the first and the last layer are there, and the share of unimportant packets
among those that the queues to the hosts dropped. The launches of all combinations take turns, --turns times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import testbed_job

from jaxcomm import testbed
from jaxcomm.environment import TRANSPORT, UDP_PATHS, UDP_PRIORITIES
from jaxcomm.report.tables import table
from jaxcomm.testbed import QueueCounters, Testbed

PROGRAM: Final = Path(__file__).with_name("mlt_mechanisms_job.py")
COMBINATIONS: Final = ("TCP", "", "A", "AB", "ABC", "C", "BC", "B", "AC")
PRIORITIES: Final = 8
BUFFER: Final = 64 << 10  # bytes
SHARES: Final = (1.0, 1.0, 1.0, 0.25)  # rates of the spines
WARM: Final = 8  # means in which paths find their rates
LAUNCH_S: Final = 600.0


class Found(NamedTuple):
    """The means of a launch: rows of seconds, lost share and, with priorities, the first and last layers' seconds.

    `queues`: the counters of the switches' queues to the hosts.
    """

    means: list[list[float]]
    queues: list[QueueCounters]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=40.0, help="of a spine of full rate")
    parser.add_argument("--kib", type=int, default=256, help="of each of the eight layers")
    parser.add_argument("--bound", type=float, default=0.1)
    parser.add_argument("--paths", type=int, default=8)
    parser.add_argument("--means", type=int, default=40, help="of each launch")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--combinations", default=",".join(COMBINATIONS), help="such as AB,TCP; an empty item: exact over UDP"
    )
    parser.add_argument("--out", type=Path, help="also write all times to this file, as JSON")
    args = parser.parse_args()
    launches: dict[str, list[Found]] = {}
    for turn in range(args.turns):
        for name in args.combinations.split(","):
            launches.setdefault(name, []).append(found := launch(name, args))
            print(f"turn {turn}, {name or 'none'}: {1e3 * np.median(columns(found)[0]):.0f} ms", flush=True)
    if args.out:
        args.out.write_text(json.dumps({name: [found._asdict() for found in each] for name, each in launches.items()}))
    heads = ("", "median", "99 %", "lost", "first layer", "last layer", "unimportant of the drops")
    print(table(heads, [row(name, found) for name, found in launches.items()]))


def launch(name: str, args: argparse.Namespace) -> Found:
    """Runs one job on a new testbed."""
    racks = ("left", "right")
    has_priorities = "B" in name
    alike = {} if has_priorities else {"thresholds": [BUFFER] * PRIORITIES}
    wanted = Testbed.model_validate(
        {
            "switch": {"buffer_bytes": BUFFER, **alike},
            "rails": [{"name": "eth0", "mbit": 2.5 * args.mbit}],
            "racks": [{"name": rack} for rack in racks],
            "spines": [{"name": f"s{i}", "mbit": share * args.mbit} for i, share in enumerate(SHARES)],
            "hosts": [{"name": f"{rack}{i}", "rack": rack} for rack in racks for i in range(2)],
        }
    )
    with testbed.up(wanted) as layout:
        words = [args.bound if "A" in name else 0.0, "priorities" if has_priorities else "-", WARM + args.means]
        processes = testbed_job.start(
            layout,
            [str(PROGRAM), str(args.kib), *map(str, words)],
            lambda process: subprocess.DEVNULL if process else subprocess.PIPE,
            errors=None,
            further={
                TRANSPORT: "tcp" if name == "TCP" else "udp",
                UDP_PATHS: str(args.paths if "C" in name and name != "TCP" else 1),
                UDP_PRIORITIES: str(PRIORITIES if has_priorities else 1),
            },
        )
        try:
            output = processes[0].communicate(timeout=LAUNCH_S)[0]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        queues = testbed.queue_counters(layout)
    means = [[float(word) for word in line.split()[1:]] for line in output.splitlines() if line.startswith("@mean ")]
    if len(means) != WARM + args.means:
        raise SystemExit(f"{name or 'none'}: the job ended after {len(means)} means; see its errors above")
    return Found(means[WARM:], queues)


def columns(*launches: Found) -> np.ndarray:
    return np.array([mean for found in launches for mean in found.means]).T


def row(name: str, launches: list[Found]) -> tuple[str, ...]:
    seconds, lost, *ends = columns(*launches)
    queues = [queue for found in launches for queue in found.queues]
    ordinary = sum(queue.ordinary_drops for queue in queues)
    important = sum(queue.important_drops for queue in queues)
    return (
        name or "none",
        *(f"{1e3 * each:.0f} ms" for each in (np.median(seconds), np.percentile(seconds, 99))),
        f"{np.mean(lost):.2%}",
        *([f"{1e3 * np.median(each):.0f} ms" for each in ends] or ["", ""]),
        f"{ordinary / (ordinary + important):.0%} of {ordinary + important}" if ordinary + important else "none",
    )


if __name__ == "__main__":
    main()
