"""Figure 6(b) of the StragglAR paper: an allreduce of 1 GiB over cluster sizes, theirs beside jaxcomm's schedules.

    python benchmarks/papers/straggler.py --out DIR

Prints the tables, and writes them and the plot to DIR. "Theirs" are the paper's formulas. "Ours" count the rounds and
bytes of our schedules.

Source: Devraj et al., "Accelerating AllReduce with a Persistent Straggler", sections 3.2, 4.1 and 4.3. The paper gives
figures for powers of two only. For other numbers of ranks, round counts and formulas are from the authors' published
code/simulation.py, which computes the figure's speedups.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxcomm import files, schedules
from jaxcomm.report.tables import table

NBYTES: Final = 2**30
ALPHA: Final = 3e-6  # seconds per round
BETA: Final = 1 / 450e9  # seconds per byte
POWERS: Final = [2**i for i in range(2, 11)]
MIDPOINTS: Final = [3 * 2**i for i in range(1, 9)]
THEIR_LARGEST: Final = 256
THEIR_ROUNDS: Final = {6: 7, 12: 15, 24: 27, 48: 57, 96: 108, 192: 208}  # rounds of the schedules that they generated


class Baselines(NamedTuple):
    """Seconds of the allreduces that the figure compares with, after the straggler's arrival."""

    ring: float
    halving_doubling: float
    broadcast: float


class Row(NamedTuple):
    """For n ranks: rounds and seconds of the straggler schedules in n - 1 chunks, and of ours in its best k chunks.

    Their values are None if the authors give no number of rounds.
    """

    ranks: int
    their_rounds: int | None
    our_rounds: int
    theirs: float | None
    ours: float
    best_chunks: int
    best: float
    their_baselines: Baselines
    our_baselines: Baselines


def row(ranks: int) -> Row:
    """Both sides for a power of two, or a midpoint between two."""
    rounds = their_rounds(ranks)
    fixed = schedules.straggler(ranks, 0, ranks - 1)
    root = math.sqrt((math.ceil(math.log2(ranks)) - 1) * NBYTES * BETA / ALPHA)
    tried = [schedules.straggler(ranks, 0, chunks) for chunks in (math.floor(root), math.ceil(root))]
    best = min(tried, key=_unaligned)
    plain = schedules.ring(ranks), schedules.halving_doubling(ranks), schedules.broadcast(ranks, 0)
    return Row(
        ranks=ranks,
        their_rounds=rounds,
        our_rounds=fixed.num_rounds,
        theirs=_seconds(rounds, rounds / (ranks - 1)) if rounds else None,
        ours=_unaligned(fixed),
        best_chunks=best.num_chunks,
        best=_unaligned(best),
        their_baselines=their_baselines(ranks),
        our_baselines=Baselines(*map(_unaligned, plain)),
    )


def their_rounds(ranks: int) -> int | None:
    """Rounds of their schedule: Theorem 1 for powers of two, counted by the authors for the midpoints."""
    log = math.log2(ranks)
    return ranks - 2 + int(log) if log.is_integer() else THEIR_ROUNDS.get(ranks)


def their_baselines(ranks: int) -> Baselines:
    """Their formulas.

    At midpoints halving/doubling first merges every three ranks into two, and a broadcast takes fractions of rounds.
    """
    log = math.log2(ranks)
    lap = 2 * (ranks - 1) / ranks
    return Baselines(
        ring=_seconds(2 * (ranks - 1), lap),
        halving_doubling=_seconds(2 * math.ceil(log), lap if log.is_integer() else 3 - 2 / 2 ** math.floor(log)),
        broadcast=_seconds(log, log),
    )


def straggler_table(rows: Sequence[Row]) -> str:
    """Rounds and milliseconds of the straggler schedules, and the speedup of each over a ring."""
    header = ["ranks", "rounds theirs", "ours", "ms theirs", "ours", "ratio", "best k", "ms", "ratio"]
    header += ["speedup theirs", "ours", "best k"]
    cells = []
    for each in rows:
        seconds = each.theirs, each.ours, each.best
        times = [f"{1e3 * time:.3f}" if time else None for time in seconds]
        speedups = [f"{each.our_baselines.ring / time:.3f}" if time else None for time in seconds]
        ratios = [f"{time / each.theirs:.3f}" if each.theirs else None for time in (each.ours, each.best)]
        fixed = [each.their_rounds, each.our_rounds, *times[:2], ratios[0]]
        cells.append([each.ranks, *fixed, each.best_chunks, times[2], ratios[1], *speedups])
    return table(header, cells)


def baseline_table(rows: Sequence[Row]) -> str:
    """Milliseconds of the baselines."""
    header, cells = ["ranks"], []
    for name in Baselines._fields:
        header += [f"{name.replace('_', '/')} theirs", "ours", "ratio"]
    for each in rows:
        line: list[object] = [each.ranks]
        for theirs, ours in zip(each.their_baselines, each.our_baselines, strict=True):
            line += [f"{1e3 * theirs:.3f}", f"{1e3 * ours:.3f}", f"{ours / theirs:.3f}"]
        cells.append(line)
    return table(header, cells)


def plot(panels: Mapping[str, Sequence[Row]]) -> bytes:
    """The figure as PNG: speedup over a ring, one panel for each group of ranks."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        ranks = [each.ranks for each in rows]
        ring = np.array([each.their_baselines.ring for each in rows])
        lines: dict[str, list[float | None]] = {
            "theirs: ring": [*ring],
            "theirs: halving/doubling": [each.their_baselines.halving_doubling for each in rows],
            "theirs: broadcast": [each.their_baselines.broadcast for each in rows],
            "theirs: StragglAR": [each.theirs for each in rows],
            "ours: n - 1 chunks": [each.ours for each in rows],
            "ours: best k": [each.best for each in rows],
        }
        for name, seconds in lines.items():
            ours = name.startswith("ours")  # drawn below theirs, where both coincide
            speedups = ring / np.array(seconds, dtype=float)
            axes.plot(ranks, speedups, "s-" if ours else "o--", markersize=4, zorder=2 if ours else 3, label=name)
        axes.axvline(THEIR_LARGEST, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [str(n) for n in ranks])
        axes.set_title(f"{title}; their figure ends at {THEIR_LARGEST}")
        axes.set_xlabel("ranks")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("speedup over a ring")
    figure.axes[0].legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(description="StragglAR's Figure 6(b), theirs beside ours.")
    parser.add_argument("--out", type=Path, default=Path("build/papers"), help="folder of the files (build/papers)")
    out = parser.parse_args(argv).out
    panels = {"powers of two": [row(n) for n in POWERS], "midpoints": [row(n) for n in MIDPOINTS]}
    lines = [
        "1 GiB, 3 µs a round, 450 GB/s; times from the straggler's arrival on, the others being done with their part",
        "ratio: ours / theirs; straggler schedules in ranks - 1 chunks, and in the best number of chunks k",
    ]
    for title, rows in panels.items():
        lines += ["", title, "", straggler_table(rows), "", baseline_table(rows)]
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "straggler.txt", "\n".join(lines) + "\n")
    files.write(out / "straggler.png", plot(panels))


def _unaligned(schedule: schedules.Schedule) -> float:
    """Time of a schedule if chunks may have any size, as in the paper."""
    return _seconds(schedule.num_rounds, schedule.volume / schedule.num_chunks)


def _seconds(rounds: float, volume: float) -> float:
    return rounds * ALPHA + volume * NBYTES * BETA


if __name__ == "__main__":
    main()
