"""`jaxcomm verify`: proves plan files and the built-in schedules, and prints one line for each proof."""

from __future__ import annotations

import itertools
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any, get_args

from jaxcomm import plan, schedules
from jaxcomm.cli.common import arguments, options, output, progress
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.plan import proof
from jaxcomm.program import program, verifier
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.report.tables import seconds_text
from jaxcomm.report.words import range_text
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.halves import Half

EXAMPLE = """
    jaxcomm verify plan.json
    jaxcomm verify --schedule straggler --ranks 2..32,64,128,256
    jaxcomm verify --all-schedules
"""

_RANKS = "2..32,64,128,256"

# The late rank is in the middle, so that the proofs cover on-time ranks below and above it.
_KINDS: dict[str, Callable[[int, int], Schedule]] = {
    "ring": lambda ranks, chunks: schedules.ring(ranks),
    "halving_doubling": lambda ranks, chunks: schedules.halving_doubling(ranks),
    "direct": lambda ranks, chunks: schedules.direct(ranks),
    "broadcast": lambda ranks, chunks: schedules.broadcast(ranks, ranks // 2),
    "straggler": lambda ranks, chunks: schedules.straggler(ranks, ranks // 2, chunks),
    "direct_join": lambda ranks, chunks: schedules.direct_join(ranks, ranks // 2, chunks),
    "late_join": lambda ranks, chunks: schedules.late_join(ranks, ranks // 2, chunks),
    "hybrid": lambda ranks, chunks: schedules.hybrid(ranks, ranks // 2, chunks + ranks, chunks),
    "stragglers": lambda ranks, chunks: schedules.stragglers(ranks, _late(ranks), chunks),
    "chain": lambda ranks, chunks: schedules.chain(ranks, _late(ranks), chunks),
    "hierarchical": lambda ranks, chunks: schedules.hierarchical(
        schedules.HostLinks.of(_hosts(ranks), "rank", 4.0), chunks
    ),
}
_WITHOUT_CHUNKS = ("ring", "halving_doubling", "direct", "broadcast")


def _late(ranks: int) -> list[int]:
    """Two late ranks, or one late rank if there are only two ranks."""
    return [ranks // 2, 0][: ranks - 1]


def _hosts(ranks: int) -> list[int]:
    """The host of each rank: each host has two ranks. The last host has one rank if the number of ranks is odd."""
    return [rank // 2 for rank in range(ranks)]


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="plan files")
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        choices=[*_KINDS],
        help="prove this built-in schedule; may be repeated",
    )
    parser.add_argument("--all-schedules", action="store_true", help="prove every kind of built-in schedule")
    parser.add_argument(
        "--ranks", type=arguments.counts, default=arguments.counts(_RANKS), help=f"numbers of ranks ({_RANKS})"
    )
    parser.add_argument(
        "--chunks",
        type=arguments.counts,
        help="chunk counts of schedules that have them (1, n-1 and 2n+1 for n ranks; hierarchical: 1, 16)",
    )
    parser.add_argument("--programs", action="store_true", help="also compile each schedule and prove the program")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Proves all named plans and schedules. Raises an error after the last proof if any proof failed."""
    kinds = [*_KINDS] if args.all_schedules else args.schedule
    if not args.files and not kinds:
        raise JaxcommError("nothing to verify.\n  Cure: name a plan file, or --schedule KIND, or --all-schedules")
    with progress.clock(f"reading {', '.join(args.files)}"):
        files = {file: plan.load(file) for file in args.files}
    subjects = [*_of_files(files), *_built_in(kinds, args.ranks, args.chunks)]
    rows = []
    with progress.Bar(len(subjects), "proving") as bar:
        for name, schedule in subjects:
            row = _prove(name, schedule, args.programs)
            rows.append(row)
            if not args.json:
                bar.write(_line(row), file=sys.stdout)
            bar.update()
        for file, loaded in files.items():
            for kind, words in proof.decisions(loaded):
                rows.append(
                    {"name": f"{file}, {kind}", "kind": kind, "ranks": loaded.ranks, "holds": words, "error": None}
                )
                if not args.json:
                    bar.write(f"proved  {file}, {kind}: {words}", file=sys.stdout)
    failed = [row for row in rows if row["error"]]
    if args.json:
        output.print_json("proofs", {"proved": len(rows) - len(failed), "failed": len(failed), "rows": rows})
    if failed:
        raise JaxcommError(f"{len(failed)} of {len(rows)} not proved; the first: {failed[0]['error']}")
    if not args.json:
        others = ", and the other decisions hold" if len(rows) > len(subjects) else ""
        print(f"{len(rows)} of {len(rows)} proved: every rank ends with every contribution exactly once{others}")
    return 0


def _of_files(files: dict[str, plan.Plan]) -> Iterator[tuple[str, Schedule]]:
    for file, loaded in files.items():
        for i, schedule in dict.fromkeys((i, schedule) for i, _, schedule in loaded.all_reduces()):
            if (entry := loaded.collectives[i]).schedule.kind != "lax":
                yield f"{file}, {range_text(entry)}: {schedule.kind}", schedule
        for half in loaded.halves or ():
            if half.schedule.kind == "lax":
                continue
            for collective in get_args(Half):
                schedule = loaded.half_of(collective, half.schedule)
                yield f"{file}, {range_text(half)} of {collective}: {schedule.kind}", schedule


def _built_in(kinds: list[str], ranks: list[int], chunks: list[int] | None) -> Iterator[tuple[str, Schedule]]:
    for kind, n in itertools.product(kinds, ranks):
        counts = [1] if kind in _WITHOUT_CHUNKS else chunks or _counts(kind, n)
        for k in counts:
            try:
                yield kind, _KINDS[kind](n, k)
            except ValueError as error:
                raise JaxcommError(f"{kind}: {error}") from None


def _counts(kind: str, ranks: int) -> list[int]:
    if kind == "hierarchical":  # the proof visits every transfer, which is slow for many chunks
        return [1, 16]
    return sorted({1, ranks - 1, 2 * ranks + 1})


def _prove(name: str, schedule: Schedule, programs: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "kind": schedule.kind, "ranks": schedule.ranks, "chunks": schedule.num_chunks}
    start = time.perf_counter()
    try:
        proof = verifier.verify_schedule(schedule)
        counts = {**proof.counts}
        if programs and schedule.collective != "all_reduce":
            counts |= verify_messages(compile_messages(schedule), schedule.collective).counts
        elif programs:
            counts |= verifier.verify_program(program.compile(schedule), schedule).counts
        row |= {"counts": {name.replace(" ", "_"): count for name, count in counts.items()}, "by": proof.method}
    except PlanError as error:
        return row | {"error": str(error)}
    return row | {"error": None, "seconds": time.perf_counter() - start}


def _line(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"FAILED  {row['name']}: {row['ranks']} ranks, {row['chunks']} chunks: {row['error']}"
    shown = {"ranks": row["ranks"], "chunks": row["chunks"], **row["counts"]}
    names = [name for name in ("ranks", "chunks", "rounds", "transfers", "operations", "messages") if name in shown]
    counts = ", ".join(f"{shown[name]} {name[: -1 if shown[name] == 1 else None]}" for name in names)
    proof = "exactly once, free of races" if "operations" in shown else "exactly once"
    return f"proved  {row['name']}: {counts}: {proof}, by {row['by']}; {seconds_text(row['seconds'])}"
