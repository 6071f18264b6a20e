"""Cuts a rail at random moments, in all ways, while four hosts sum buffers over two rails. Needs root.

    python benchmarks/rail_cuts.py                     # 100 cuts, about 10 minutes
    python benchmarks/rail_cuts.py --mib 4             # buffers of 4 MiB instead of 16
    python benchmarks/rail_cuts.py --seed 3 --cuts 5   # also prints the processes' output
    python benchmarks/rail_cuts.py --cuts 0 --calm_s 3600 --busy 2   # an hour of load: no rail may be lost
    JAXCOMM_TRANSPORT=udp python benchmarks/rail_cuts.py --cuts 20 --mbit 250

Each cut is repaired after a while. The next one follows once the rail is back and some calls were undisturbed.
`benchmarks/rail_cut_job.py` makes the calls and checks the sums. The hit call is the one under way at the cut. It takes
longer than an undisturbed call, in part because the other rail alone carries the rest of it. The table therefore shows
its excess over an undisturbed call, and its excess without this part.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import testbed_job
import turns

from jaxcomm import testbed
from jaxcomm.report.tables import table
from jaxcomm.testbed import Layout, Testbed, network
from jaxcomm.testbed.schema import Cut, CutKind

PROGRAM = Path(__file__).with_name("rail_cut_job.py")
# Without "renumbered", after which a rail comes back before its repair.
KINDS = [kind for kind in get_args(CutKind) if kind != "renumbered"]
CALM_S = 1.5  # between a rail's return and the next cut, at least
BACK_S = 20.0  # time limit for a rail's return
START_S, END_S = 120.0, 60.0


class Call(NamedTuple):
    """One all-reduce of one process; seconds of the monotonic clock."""

    begin: float
    end: float
    is_right: bool


class Happened(NamedTuple):
    """One cut and its effects."""

    kind: CutKind
    at: float
    repaired: float
    noticed: float | None  # by the first process
    back: float | None  # in all processes


def hosts(mbit: int) -> Testbed:
    """Four hosts with two rails of this rate."""
    rails = [{"name": name, "mbit": mbit} for name in ("eth0", "eth1")]
    return Testbed.model_validate({"rails": rails, "hosts": [{"name": name} for name in "abcd"]})


class Job:
    """The processes and their output."""

    def __init__(self, layout: Layout, folder: Path, mib: int) -> None:
        self._end_file = folder / "end"
        self._files = [folder / str(process) for process in range(layout.testbed.processes)]
        with contextlib.ExitStack() as stack:
            outputs = [stack.enter_context(file.open("w")) for file in self._files]
            words = [str(PROGRAM), str(mib << 18), str(self._end_file)]
            self.children = testbed_job.start(layout, words, outputs.__getitem__)

    def lines(self) -> list[list[str]]:
        """The whole lines of each process so far."""
        return [file.read_text().splitlines(keepends=False) for file in self._files]

    def words(self, kind: str) -> list[list[list[str]]]:
        """The words after `kind`, for each line of each process that begins with it."""
        return [[line.split()[1:] for line in own if line.startswith(f"{kind} ")] for own in self.lines()]

    def calls(self) -> list[list[Call]]:
        """The calls of each process."""
        return [[Call(float(b), float(e), right == "1") for b, e, right in own] for own in self.words("@call")]

    def lost(self) -> list[list[tuple[float, int]]]:
        """For each process, when its number of lost rails changed, and the new numbers."""
        return [[(float(at), int(count)) for at, count in own] for own in self.words("@lost")]

    def is_running(self) -> bool:
        return all(child.poll() is None for child in self.children)

    def finish(self) -> None:
        """Makes all processes end after the same call."""
        self._end_file.touch()
        deadline = time.monotonic() + END_S
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            child.wait()


def wait(job: Job, seconds: float, until: str = "") -> bool:
    """Waits until all processes have made some calls ("calls") or have no lost rail ("back"). False after the limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and job.is_running():
        if until == "calls" and all(len(own) > 5 for own in job.calls()):
            return True
        if until == "back" and not any(own and own[-1][1] for own in job.lost()):
            return True
        time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
    return False


def happen(layout: Layout, job: Job, drawn: random.Random, kind: CutKind) -> Happened:
    """Cuts a link at a random moment, repairs it, and waits until it is back."""
    wait(job, CALM_S + drawn.uniform(0, 1))
    host, rail = drawn.choice(layout.testbed.hosts).name, drawn.choice(layout.testbed.rails).name
    cut = Cut(host=host, rail=rail, at_s=0, kind=kind)
    at = carry_out(network.cut(layout, cut))
    wait(job, drawn.uniform(0.5, 3))
    repaired = carry_out(network.repair(layout, cut))
    wait(job, 0.3)  # processes may notice the cut at its end only
    is_back = wait(job, BACK_S, "back")
    changes = [change for own in job.lost() for change in own if change[0] >= at]
    noticed = min((when for when, count in changes if count), default=None)
    back = max((when for when, count in changes if not count), default=None) if is_back else None
    return Happened(kind, at, repaired, noticed, back)


def carry_out(commands: Sequence[network.Command]) -> float:
    """Runs the commands. Returns the time at which the first one ended."""
    ran = []
    for command in commands:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
        ran.append(time.monotonic())
    return ran[0]


class Figures(NamedTuple):
    """Seconds of undisturbed calls and their median `whole`, and the median `half` of calls on one rail.

    For each cut, `beyond_whole` is the hit call's excess over `whole`. `beyond_both` excludes the part that is due to
    one rail alone.
    """

    calm: list[float]
    whole: float
    half: float
    beyond_whole: list[float]
    beyond_both: list[float]


def figures(calls: Sequence[Sequence[Call]], happened: Sequence[Happened]) -> Figures:
    """Times of the calls; a call takes as long as in its slowest process."""
    rounds = [Call(min(c.begin for c in each), max(c.end for c in each), True) for each in zip(*calls, strict=False)]
    seconds = [max(c.end - c.begin for c in each) for each in zip(*calls, strict=False)]
    spans = [(each.at, each.back or each.repaired) for each in happened]
    calm = [s for call, s in zip(rounds, seconds, strict=True) if all(call.end < a or call.begin > b for a, b in spans)]
    alone = [
        s
        for call, s in zip(rounds, seconds, strict=True)
        if any(each.noticed and each.noticed + 0.1 < call.begin and call.end < each.repaired for each in happened)
    ]
    whole, half = statistics.median(calm[5:]), statistics.median(alone)
    found = Figures(calm[5:], whole, half, [], [])
    for each in happened:
        number = next((i for i, call in enumerate(rounds) if call.end > each.at), None)
        if number is None:
            continue  # the job had ended
        left = min(1.0, max(0.0, 1 - (each.at - rounds[number].begin) / whole))  # share of the hit call left at the cut
        found.beyond_whole.append(seconds[number] - whole)
        found.beyond_both.append(seconds[number] - whole - left * (half - whole))
    return found


def other_losses(job_lost: Sequence[Sequence[tuple[float, int]]], happened: Sequence[Happened]) -> int:
    """The number of rails that processes lost at times when no rail was cut or had just been repaired."""
    spans = [(each.at, each.repaired + BACK_S if each.back is None else each.back + 0.5) for each in happened]
    losses = [when for own in job_lost for (_, was), (when, now) in itertools.pairwise([(0.0, 0), *own]) if now > was]
    return sum(not any(begin <= when <= end for begin, end in spans) for when in losses)


def percentile(values: Sequence[float], part: float) -> str:
    """A percentile, in ms."""
    ordered = sorted(values)
    return f"{1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]:.0f} ms" if ordered else "-"


def rows(found: Figures, happened: Sequence[Happened]) -> Iterator[list[object]]:
    """A row for each kind of cut, and one for all."""
    for kind in (*KINDS, "all"):
        of = [i for i, each in enumerate(happened[: len(found.beyond_whole)]) if kind in (each.kind, "all")]
        beyond, both = ([values[i] for i in of] for values in (found.beyond_whole, found.beyond_both))
        back = [max(0.0, b - happened[i].repaired) for i in of if (b := happened[i].back) is not None]
        unnoticed = sum(happened[i].noticed is None for i in of)
        missing = sum(happened[i].back is None for i in of) - unnoticed
        yield [
            kind,
            len(of),
            unnoticed,
            *(percentile(values, part) for values in (beyond, both) for part in (0.5, 0.95)),
            *(percentile(back, part) for part in (0.5, 1.0)),
            missing,
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of hosts, rails and moments; default 0")
    parser.add_argument("--cuts", type=int, default=100, help="how many; default 100")
    parser.add_argument("--mib", type=int, default=16, help="of each rank's buffer; default 16")
    parser.add_argument("--calm_s", type=float, default=0.0, help="seconds before the first cut; default 0")
    parser.add_argument("--mbit", type=int, default=500, help="of each rail; default 500")
    parser.add_argument("--busy", type=int, default=0, help="processes besides that only take time; default none")
    parser.add_argument("--out", help="also write the seconds of calls to this file, as JSON")
    args = parser.parse_args()
    drawn, happened = random.Random(args.seed), list[Happened]()
    with testbed.up(hosts(args.mbit)) as layout, tempfile.TemporaryDirectory() as folder:
        job = Job(layout, Path(folder), args.mib)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
        try:
            wait(job, START_S, "calls")
            wait(job, args.calm_s)
            over_udp = os.environ.get("JAXCOMM_TRANSPORT") == "udp"
            kinds = [kind for kind in KINDS if over_udp or kind != "no-udp"]
            while len(happened) < args.cuts and job.is_running():
                happened.append(happen(layout, job, drawn, kinds[len(happened) % len(kinds)]))
                print(f"{len(happened)} of {args.cuts}: {happened[-1]}", file=sys.stderr, flush=True)
        finally:
            for process in busy:
                process.kill()
                process.wait()
            job.finish()
        lines, calls, others = job.lines(), job.calls(), other_losses(job.lost(), happened)
    ended = sum("@end" in own for own in lines)
    wrong = sum(not call.is_right for own in calls for call in own)
    if 0 < args.cuts < 6 or ended < len(lines) or wrong:
        print("\n".join(f"[{process}] {line}" for process, own in enumerate(lines) for line in own))
    print(
        f"{min(map(len, calls))} calls, {wrong} wrong sums, {ended} of {len(lines)} processes came to the end, "
        f"{others} rails lost without a cut"
    )
    if happened and calls:
        found = figures(calls, happened)
        hit = [found.whole + each for each in found.beyond_whole]
        turns.write(args.out, [turns.row({"undisturbed": found.calm, "hit": hit}, mib=args.mib)])
        print(
            f"an undisturbed call takes {1e3 * found.whole:.0f} ms, at the 95th percentile "
            f"{percentile(found.calm, 0.95)}, one on one rail {1e3 * found.half:.0f} ms"
        )
        head = ["cut", "times", "unnoticed", "hit call longer by", "95 %", "beyond one rail's", "95 %"]
        print(table([*head, "back after", "at most", "not back"], [*rows(found, happened)]))
    sys.exit(wrong > 0 or ended < len(lines))


if __name__ == "__main__":
    main()
