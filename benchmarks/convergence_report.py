"""The table and the pictures of the convergence study, from its runs."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from scipy import stats

from jaxcomm import files

Result = dict[str, Any]  # a line of results.jsonl

HIGHER_IS_BETTER = {"accuracy": True, "nats": False}
CONFIDENCE = 0.95
# What a row or a line is called, its scheme, and whether it is of the average over time.
SERIES = [
    ("BSP", "bsp", False),
    ("BSP, SWA", "bsp", True),
    ("DS-Sync", "ds-sync", False),
    ("DS-Sync, SWA", "ds-sync", True),
    *((f"MLT {p} %", f"mlt-{p}", False) for p in (1, 10, 20, 30)),
    ("MLT 20 %, local", "mlt-local-20", False),
    *((f"random drop {p} %", f"random-{p}", False) for p in (1, 10, 20, 30)),
    ("local SGD", "local-sgd", False),
    ("outer steps", "outer-steps", False),
    ("gossip", "gossip", False),
]


class Curves(NamedTuple):
    """One row of the table: by seed, the metric at every measured step."""

    name: str
    by_seed: dict[int, list[float]]

    @property
    def final(self) -> list[float]:
        """The last measurement of each seed."""
        return [self.by_seed[seed][-1] for seed in sorted(self.by_seed)]


def best_rate(results: Sequence[Result]) -> float:
    """The learning rate whose runs end best on average."""
    sign = 1 if HIGHER_IS_BETTER[results[0]["metric"]] else -1
    rates = sorted({result["rate"] for result in results})

    def final(rate: float) -> float:
        return sign * statistics.mean(run[run["metric"]][-1] for run in results if run["rate"] == rate)

    return max(rates, key=final)


def interval(values: Sequence[float]) -> float:
    """Half the width of the mean's confidence interval by Student's t; infinite for one value."""
    if len(values) < 2:
        return math.inf
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def write(results: Sequence[Result], folder: Path, tuning_seeds: Sequence[int]) -> None:
    """Writes table.md and TASK.svg for every task that has runs."""
    parts = []
    for task in dict.fromkeys(result["task"] for result in results):
        tuning = [result for result in results if result["task"] == task and result["seed"] in tuning_seeds]
        rate = best_rate(tuning)
        runs = [
            result
            for result in results
            if result["task"] == task and result["rate"] == rate and result["seed"] not in tuning_seeds
        ]
        measured, metric = runs[0]["measured"], runs[0]["metric"]
        rows = [*series(runs)]
        parts.append(table(task, metric, measured, rows, tuning, rate))
        files.write(folder / f"{task}.svg", plot(task, metric, measured, rows))
    files.write(folder / "table.md", "\n\n".join(parts) + "\n")


def series(runs: Sequence[Result]) -> Iterator[Curves]:
    """The rows that have runs."""
    for name, scheme, swa in SERIES:
        mine = {run["seed"]: run["swa" if swa else run["metric"]] for run in runs if run["scheme"] == scheme}
        if mine:
            yield Curves(name, mine)


def table(
    task: str,
    metric: str,
    measured: Sequence[int],
    rows: Sequence[Curves],
    tuning: Sequence[Result],
    rate: float,
) -> str:
    """Markdown: a row per scheme, what it is compared with above."""
    bsp = rows[0]
    middle, half = statistics.mean(bsp.final), interval(bsp.final)
    target = quality_target(bsp, measured)
    lines = [
        f"### {task}: {metric} after {measured[-1]} steps, {'more' if HIGHER_IS_BETTER[metric] else 'less'} is better",
        "",
        f"BSP's {CONFIDENCE:.0%} confidence interval: {middle - half:.4f} to {middle + half:.4f}. "
        f"Target: {target:.4f}, BSP's mean after three quarters of the steps. Learning rate: {rate:g} of "
        f"{', '.join(f'{each:g}' for each in sorted({run['rate'] for run in tuning}))}.",
        "",
        "| scheme | seeds | mean ± standard deviation | paired difference to BSP | BSP's interval | steps to target |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        final = statistics.mean(row.final)
        spread = f"{final:.4f} ± {statistics.stdev(row.final):.4f}" if len(row.final) > 1 else f"{final:.4f}"
        shared = sorted(row.by_seed.keys() & bsp.by_seed.keys())
        differences = [row.by_seed[seed][-1] - bsp.by_seed[seed][-1] for seed in shared]
        paired = "" if row is bsp else f"{statistics.mean(differences):+.4f} ± {interval(differences):.4f}"
        cells = [row.name, str(len(row.final)), spread, paired, place(final, middle, half, metric)]
        lines.append(f"| {' | '.join([*cells, steps_to(target, row, measured, metric)])} |")
    return "\n".join(lines)


def quality_target(bsp: Curves, measured: Sequence[int]) -> float:
    """BSP's mean after three quarters of the steps."""
    index = max(0, 3 * len(measured) // 4 - 1)
    return statistics.mean(curve[index] for curve in bsp.by_seed.values())


def place(final: float, middle: float, half: float, metric: str) -> str:
    """Where a mean lies."""
    if abs(final - middle) <= half:
        return "inside"
    return "better" if (final > middle) == HIGHER_IS_BETTER[metric] else "worse"


def steps_to(target: float, row: Curves, measured: Sequence[int], metric: str) -> str:
    """Mean of the first measured steps at which the seeds reach the target, and how many do."""
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    first = [
        next((step for step, value in zip(measured, curve, strict=True) if sign * value >= sign * target), None)
        for curve in row.by_seed.values()
    ]
    reached = [step for step in first if step is not None]
    if len(reached) == len(first):
        return f"{statistics.mean(reached):.0f}"
    return f"{statistics.mean(reached):.0f} ({len(reached)} of {len(first)} seeds)" if reached else "not reached"


def plot(task: str, metric: str, measured: Sequence[int], rows: Sequence[Curves]) -> str:
    """SVG: mean curves on the left; on the right what every seed ends with, and BSP's confidence interval."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasSVG(figure)
    curves, finals = figure.subplots(1, 2, width_ratios=[3, 2])
    bsp = rows[0]
    middle, half = statistics.mean(bsp.final), interval(bsp.final)
    if math.isfinite(half):
        for axes, span in ((curves, curves.axhspan), (finals, finals.axvspan)):
            axes.set_axisbelow(True)
            span(middle - half, middle + half, color="0.88", label="BSP's 95 % confidence interval")
    for number, row in enumerate(rows):
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
        means = [statistics.mean(values) for values in zip(*row.by_seed.values(), strict=True)]
        curves.plot(measured, means, linewidth=1.3, **style)
        finals.plot(row.final, [number] * len(row.final), "o", markersize=3.5, alpha=0.6, color=style["color"])
        finals.plot([statistics.mean(row.final)], [number], "|", markersize=14, color=style["color"])
    late = measured[len(measured) // 3 :]
    shown = [value for row in rows for curve in row.by_seed.values() for value in curve[-len(late) :]]
    curves.set_xlim(late[0], late[-1])
    curves.set_ylim(min(shown), max(shown))
    curves.set_xlabel("step")
    curves.set_ylabel(f"{metric}, mean over seeds")
    curves.set_title(f"{task}: the last two thirds", fontsize=10)
    finals.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    finals.invert_yaxis()
    finals.set_xlabel(f"{metric} after {measured[-1]} steps: seeds, mean (|), BSP's interval (grey)")
    for axes in (curves, finals):
        axes.grid(visible=True, alpha=0.3)
    picture = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": task, "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
