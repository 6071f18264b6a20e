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
SHARES = (1, 10, 20, 30)
GREENS = ("#a1d99b", "#74c476", "#31a354", "#006d2c")
ORANGES = ("#fdd0a2", "#fdae6b", "#f16913", "#a63603")
REDS = ("#fcbba1", "#fc9272", "#ef3b2c", "#99000d")


class Series(NamedTuple):
    """A row of the table and a line of the picture: the metric of the weights or, with `swa`, of their average."""

    name: str
    scheme: str
    color: str
    swa: bool = False


SERIES = [
    Series("BSP", "bsp", "black"),
    Series("BSP, SWA", "bsp", "black", swa=True),
    Series("DS-Sync", "ds-sync", "tab:blue"),
    Series("DS-Sync, SWA", "ds-sync", "tab:blue", swa=True),
    Series("mean of all after each step", "every-step", "tab:cyan"),
    *(Series(f"MLT {p} %", f"mlt-{p}", color) for p, color in zip(SHARES, GREENS, strict=True)),
    Series("MLT 20 %, error feedback", "mlt-feedback-20", "tab:olive"),
    Series("MLT 20 %, each its own", "mlt-local-20", "yellowgreen"),
    *(Series(f"random {p} %", f"random-{p}", color) for p, color in zip(SHARES, ORANGES, strict=True)),
    *(Series(f"random {p} %, lost is zero", f"zeros-{p}", color) for p, color in zip(SHARES, REDS, strict=True)),
    Series("random 20 %, the same for all", "alike-20", "tab:brown"),
    Series("local SGD", "local-sgd", "tab:purple"),
    Series("outer steps", "outer-steps", "violet"),
    Series("gossip", "gossip", "tab:pink"),
    Series("DS-Sync, gradients too", "ds-gradients", "steelblue"),
    Series("DS-Sync, Adam's moments too", "ds-moments", "lightskyblue"),
    Series("DS-Sync after 150 exact steps", "exact-first", "midnightblue"),
    Series("gradients by rack, parameters every 4 steps", "racks-4", "darkcyan"),
    Series("gradients by rack, parameters every 8 steps", "racks-8", "turquoise"),
]
# Further comparisons in the table: a row, and the row that it is compared with.
PAIRS = [
    ("DS-Sync, SWA", "BSP, SWA"),
    ("DS-Sync", "mean of all after each step"),
    ("MLT 20 %, error feedback", "MLT 20 %"),
    *((f"random {p} %", f"MLT {p} %") for p in SHARES),
    *((f"random {p} %, lost is zero", f"MLT {p} %") for p in SHARES),
    ("random 20 %, the same for all", "MLT 20 %"),
]


class Curves(NamedTuple):
    """A series' runs: by seed, the metric at every measured step."""

    series: Series
    by_seed: dict[int, list[float]]

    @property
    def name(self) -> str:
        """The series' name."""
        return self.series.name

    @property
    def final(self) -> list[float]:
        """The last measurement of each seed."""
        return [self.by_seed[seed][-1] for seed in sorted(self.by_seed)]

    def differences(self, other: Curves, place: int = -1) -> list[float]:
        """Differences to `other` at one measurement, by default the last, for each seed that both have."""
        shared = sorted(self.by_seed.keys() & other.by_seed.keys())
        return [self.by_seed[seed][place] - other.by_seed[seed][place] for seed in shared]


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
    for each in SERIES:
        metric = "swa" if each.swa else runs[0]["metric"]
        mine = {run["seed"]: run[metric] for run in runs if run["scheme"] == each.scheme}
        if mine:
            yield Curves(each, mine)


def table(
    task: str,
    metric: str,
    measured: Sequence[int],
    rows: Sequence[Curves],
    tuning: Sequence[Result],
    rate: float,
) -> str:
    """A Markdown section: BSP's interval, the target and the learning rate, then a table with a row per scheme."""
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
        paired = "" if row is bsp else difference(row, bsp)
        cells = [row.name, str(len(row.final)), spread, paired, place(final, middle, half, metric)]
        lines.append(f"| {' | '.join([*cells, steps_to(target, row, measured, metric)])} |")
    found = {row.name: row for row in rows}
    pairs = [(found[one], found[other]) for one, other in PAIRS if one in found and other in found]
    if pairs:
        lines += ["", "| scheme | compared with | paired difference |", "|---|---|---|"]
        lines += [f"| {one.name} | {other.name} | {difference(one, other)} |" for one, other in pairs]
    return "\n".join(lines)


def difference(one: Curves, other: Curves) -> str:
    """Mean of the seeds' differences, and half the width of its confidence interval."""
    each = one.differences(other)
    return f"{statistics.mean(each):+.4f} ± {interval(each):.4f}"


def quality_target(bsp: Curves, measured: Sequence[int]) -> float:
    """BSP's mean after three quarters of the steps."""
    index = max(0, 3 * len(measured) // 4 - 1)
    return statistics.mean(curve[index] for curve in bsp.by_seed.values())


def place(final: float, middle: float, half: float, metric: str) -> str:
    """The place of a mean relative to BSP's interval."""
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
    """SVG of differences to BSP with the same seed: their mean over seeds by step, and each after the last step."""
    figure = Figure(figsize=(11, 1.6 + 0.24 * len(rows)), layout="constrained")
    FigureCanvasSVG(figure)
    curves, ends = figure.subplots(1, 2, width_ratios=[4, 5])
    bsp = rows[0]
    late = measured[len(measured) // 3 :]
    halves = [interval(values) for values in zip(*bsp.by_seed.values(), strict=True)]
    if math.isfinite(halves[-1]):
        shown = halves[-len(late) :]
        curves.fill_between(late, [-half for half in shown], shown, color="0.9", linewidth=0)
        ends.axvspan(-halves[-1], halves[-1], color="0.9", linewidth=0)
    ends.axvline(0, color="0.6", linewidth=0.8)
    lines: list[list[float]] = []
    for number, row in enumerate(rows):
        color = row.series.color
        lines.append([statistics.mean(row.differences(bsp, place)) for place in range(-len(late), 0)])
        curves.plot(late, lines[-1], "--" if row.series.swa else "-", linewidth=1.2, color=color)
        each = [value - statistics.mean(row.final) for value in row.final] if row is bsp else row.differences(bsp)
        ends.plot(each, [number] * len(each), "o", markersize=4, alpha=0.5, markeredgewidth=0, color=color)
        ends.plot([statistics.mean(each)], [number], "|", markersize=13, markeredgewidth=2, color=color)
    heights = [height for line, row in zip(lines, rows, strict=True) if not row.series.swa for height in line]
    low, high = min([*heights, -halves[-1]]), max([*heights, halves[-1]])
    if math.isfinite(high):
        curves.set_ylim(1.1 * low, 1.1 * high)  # SWA's lines may begin outside
    curves.set_xlim(late[0], late[-1])
    curves.set_xlabel("step; colours as on the right, SWA dashed")
    curves.set_ylabel(f"{metric}: difference to BSP, mean over seeds")
    ends.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=9)
    ends.invert_yaxis()
    ends.set_xlabel(f"after {measured[-1]} steps: ● a seed (BSP's to their mean), | the mean")
    better = "more" if HIGHER_IS_BETTER[metric] else "less"
    figure.suptitle(f"{task}: {metric}, {better} is better; grey: BSP's 95 % confidence interval", fontsize=11)
    for axes in (curves, ends):
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
    picture = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": task, "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
