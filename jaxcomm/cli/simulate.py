"""`jaxcomm simulate`: predicts every schedule's α–β time, for each size, delay and number of ranks."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from jaxcomm import files
from jaxcomm.cli import simulate_rows
from jaxcomm.cli.common import options, output, progress, simulated
from jaxcomm.cli.simulate_rows import SimulatedTimes
from jaxcomm.errors import require_extras
from jaxcomm.report import plots
from jaxcomm.report.tables import bytes_text, seconds_text, table

EXAMPLE = """
    jaxcomm simulate --ranks 8,64,1024 --late-ms 0,20 --alpha-us 10 --gigabytes-per-s 25 --plot times.png
    jaxcomm simulate --profile profile.json --plan plan.json --sizes 1MiB,16MiB
    jaxcomm simulate --profile profile.json --plan plan.json --sizes 1MiB,16MiB --collective all_gather
"""

_LATE_NOTE = "straggler: the best of its family, in `chunks`; saves: relative to the fastest that uses no delay"
_HALF_NOTE = "A late rank gains nothing: its own port bounds the call, as when all ranks arrive together."
_USE_DELAY = ("broadcast", "straggler")


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    simulated.add_arguments(parser)
    options.ports(parser)
    options.collective(parser, "the collective; sizes are of the whole buffer")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw the table, both axes logarithmic")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Predicts the times, draws the plot if wanted, and prints the table."""
    files.check_writable(args.plot)
    if args.plot:
        require_extras("--plot", "matplotlib")
    given = simulated.read(args)
    delays = given.delays or (simulated.LATE if args.collective == "all_reduce" else [0.0])
    rows = []
    with progress.Bar(len(given.ranks) * len(args.sizes) * len(delays), "simulating") as bar:
        for row in simulate_rows.rows(args.collective, given, args.sizes, delays, args.ports):
            rows.append(row)
            bar.update()
    if args.plot:
        picture = plots.png([*_panels(rows)], x="bytes of one rank's buffer", y="seconds after the arrival", log=True)
        files.write(args.plot, picture)
    alpha, beta = given.links.alpha, given.links.beta
    if args.json:
        found = [dataclasses.asdict(row) for row in rows]
        output.print_json(
            "simulation", {"collective": args.collective, "alpha_s": alpha, "beta_s_per_byte": beta, "rows": found}
        )
        return 0
    speed = f"{seconds_text(alpha)} and {1e-9 / beta:.3g} GB/s a round"
    print(f"{args.collective}: {speed}; times from the late rank's arrival on")
    print(_table(rows))
    print(_LATE_NOTE if args.collective == "all_reduce" else _HALF_NOTE)
    return 0


def _table(rows: list[SimulatedTimes]) -> str:
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.times()))
    has_chunks = any(row.chunks for row in rows)
    header = ["ranks", "bytes", "late by", *kinds, *["chunks"] * has_chunks, "fastest", "saves"]
    return table(header, [_cells(row, kinds, has_chunks) for row in rows])


def _cells(row: SimulatedTimes, kinds: list[str], has_chunks: bool) -> list[object]:
    times = [row.times().get(kind) for kind in kinds]
    shown = [None if seconds is None else seconds_text(seconds) for seconds in times]
    chunks = str(row.chunks) if row.covered == row.chunks else f"{row.chunks} ({row.covered} covered)"
    plain = {kind: seconds for kind, seconds in row.seconds.items() if kind not in _USE_DELAY}
    fastest = min(plain, key=lambda kind: plain[kind])
    gain = 1 - row.seconds.get("straggler", plain[fastest]) / plain[fastest]
    verdict = ["straggler", f"{gain:.0%}"] if gain > 0 else [fastest, None]
    ends = [*[chunks] * has_chunks, *verdict]
    return [row.ranks, bytes_text(row.bytes), seconds_text(row.late_s), *shown, *ends]


def _panels(rows: list[SimulatedTimes]) -> Iterator[list[plots.Panel]]:
    """The panels of the plot: one row per delay, one column per number of ranks."""
    for delay in dict.fromkeys(row.late_s for row in rows):
        panels = []
        for ranks in dict.fromkeys(row.ranks for row in rows):
            lines: dict[str, tuple[list[float], list[float]]] = {}
            for row in rows:
                if (row.ranks, row.late_s) == (ranks, delay):
                    for kind, seconds in row.times().items():
                        xs, ys = lines.setdefault(kind, ([], []))
                        xs.append(float(row.bytes))
                        ys.append(seconds)
            panels.append(plots.Panel(f"{ranks} ranks, one late by {seconds_text(delay)}", lines))
        yield panels
