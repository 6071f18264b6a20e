"""Training time to a target loss on a network that loses packets: with drops, and exact over UDP and TCP. Needs root.

    python benchmarks/drop_training.py benchmarks/lossy_training.toml
    python benchmarks/drop_training.py jaxcomm/testbed/examples/switch.toml

The testbed's hosts train the recipe's language model by Adam. Each seed trains in four ways: with the exact mean of
gradients over TCP, with the same over UDP, and over UDP with a mean of which a share may stay lost
(`Drop(policy="network")`) or may come a step later (`Drop(policy="deadline")`). All ranks of a job use one transport.
Therefore jobs over UDP and TCP alternate, --turns times each, and divide the seeds among them
(`benchmarks/drop_training_job.py`). Within a job over UDP the ways alternate. Times are those of the steps on process 0
until the loss on held-out text is at most --target, without the measurements. Prints the seconds by seed, their ratio
to exact sums over UDP with its 95 % interval, and the lost share of the bytes for process 0's sums.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import testbed_job

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

import time_to_loss
import turns
from time_to_loss import Reached

from jaxcomm import testbed
from jaxcomm.environment import TRANSPORT
from jaxcomm.testbed import Layout

PROGRAM: Final = Path(__file__).with_name("drop_training_job.py")


class Way(NamedTuple):
    """A job's transport, and how it sums."""

    transport: str
    sums: str


WAYS: Final = {
    "exact over UDP": Way("udp", "exact"),
    "drops over UDP": Way("udp", "drops"),
    "drops in time over UDP": Way("udp", "drops in time"),
    "exact over TCP": Way("tcp", "exact"),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("testbed", type=Path, help="FILE.toml")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each way; default 5")
    parser.add_argument("--turns", type=int, default=2, help="jobs over each transport; default 2")
    parser.add_argument("--bound", type=float, default=0.1, help="share of each tensor that may stay lost; default 0.1")
    parser.add_argument("--target", type=float, default=2.7, help="nats per held-out character; default 2.7")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements; default 10")
    parser.add_argument("--steps", type=int, default=400, help="after which a training gives up; default 400")
    parser.add_argument("--job_s", type=float, default=240.0, help="limit of a job; default 240")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", help="also write the seconds of each seed to this file")
    args = parser.parse_args()
    found: dict[str, list[Reached]] = {way: [] for way in WAYS}
    lost: dict[str, list[float]] = {way: [] for way in WAYS}
    with testbed.up(testbed.load(args.testbed)) as layout, testbed.happening(layout):
        for turn in range(min(args.turns, args.seeds)):
            seeds = [*range(turn, args.seeds, args.turns)]
            for transport in ("udp", "tcp") if turn % 2 == 0 else ("tcp", "udp"):
                for each in trained(layout, transport, seeds, args):
                    [way] = [name for name, way in WAYS.items() if way == (transport, each["way"])]
                    found[way].append(Reached(**{name: each[name] for name in Reached._fields}))
                    lost[way].append(each["lost"])
                    print(f"seed {each['seed']}, {way}: {found[way][-1]}", file=sys.stderr, flush=True)
    turns.write(args.out, [time_to_loss.row(found)])
    if args.json:
        shares = {way: {"lost": own} for way, own in lost.items()}
        ways = {way: summary | shares[way] for way, summary in time_to_loss.summary(found).items()}
        print(json.dumps({"target": args.target, "bound": args.bound, "ways": ways}))
        return
    print(time_to_loss.report(found))
    for way, own in lost.items():
        if any(own):
            print(f"{way}: {min(own):.2%} to {max(own):.2%} lost")


def trained(layout: Layout, transport: str, seeds: Sequence[int], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Runs one job over the transport. Yields its trainings as it reports them."""
    own = [way.sums for way in WAYS.values() if way.transport == transport]
    same = [word for name in ("bound", "target", "every", "steps") for word in (f"--{name}", str(getattr(args, name)))]
    processes = testbed_job.start(
        layout,
        [str(PROGRAM), "--ways", *own, "--seeds", *map(str, seeds), *same],
        lambda process: subprocess.DEVNULL if process else subprocess.PIPE,
        errors=None,
        further={TRANSPORT: transport},
    )
    timer = threading.Timer(args.job_s, lambda: [process.kill() for process in processes])
    timer.start()
    try:
        for line in processes[0].stdout or ():
            if line.startswith("@reached "):
                yield json.loads(line.removeprefix("@reached "))
        if any(process.wait() for process in processes):
            raise SystemExit(
                f"a process over {transport} failed, see its error above, or the job took {args.job_s:g} s.\n"
                "  Cure: for more time, --job_s."
            )
    finally:
        timer.cancel()
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main()
