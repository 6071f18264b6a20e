"""Appendix B of the MLT paper: losses of a queue that drops small gradients first, by its formulas and by ours.

    python benchmarks/papers/thresholds.py --out DIR

Prints the tables, and writes them and the plot to DIR. In every row "drawn" are the losses in a random simulation of
queues with exponential gaps and service, strict priorities and both thresholds, from a fixed seed.

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", appendix B. The paper
gives formulas and no figures; loads, thresholds and buffer are made up here.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from jaxcomm import files
from jaxcomm.plan.queue_drops import queue_drops, switch_drops
from jaxcomm.planner.drops.queue_thresholds import Impact, thresholds
from jaxcomm.report.tables import table

SMALL_SHARE: Final = 0.5
SMALL, LARGE = 8, 12  # packets
LOADS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.2)
QUEUES, PACKETS, LOAD, BOUND = 4, 48, 1.02, 0.1  # of the switch
REPLICAS = 4000  # queues that are simulated side by side
WARM_UP, EVENTS = 3000, 4000  # events (arrivals and departures) of each queue: left out, counted


class Row(NamedTuple):
    """Shares of the small and of the large packets that a queue of this load loses."""

    load: float
    printed: tuple[float, float]
    split: tuple[float, float]
    ours: tuple[float, float]
    drawn: tuple[float, float]


def row(load: float) -> Row:
    """One load: the formulas as printed, their two queues by M/M/1/m, our formulas for one queue, and a simulation.

    The load must not be 1, where the paper's formulas need a limit.
    """
    inner = SMALL_SHARE * SMALL
    both = _full(load, LARGE - inner)
    printed = (load**inner - (SMALL_SHARE * load) ** (SMALL + 1)) / (1 - load ** (inner + 1))
    ours = queue_drops(load, SMALL_SHARE, SMALL, LARGE)
    [drawn] = draw([load], [(SMALL, LARGE)])
    return Row(
        load,
        (printed, both),
        (_full(load, inner), both),
        (float(ours.small), float(ours.large)),
        (float(drawn[0]), float(drawn[1])),
    )


def draw(offered: Sequence[float], limits: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """The shares of small and of large packets that each queue of a switch loses, counted in a simulation.

    Args:
      offered: arriving packets of each queue per packet that the switch can send, by priority.
      limits: for each queue, the number of waiting packets from which small ones are dropped, and that for all.
    """
    random = np.random.default_rng(0)
    ends = np.cumsum([*offered, 1.0])
    ends /= ends[-1]
    bounds = np.array(limits)
    waiting = np.zeros((REPLICAS, len(offered)), int)
    came = np.zeros(2 * len(offered), int)  # small and large of each queue
    lost = np.zeros_like(came)
    for event in range(WARM_UP + EVENTS):
        what = np.searchsorted(ends, random.random(REPLICAS), side="right")
        arriving, served = what < len(offered), (what == len(offered)) & waiting.any(axis=1)
        queue, large = what[arriving], (random.random(int(arriving.sum())) >= SMALL_SHARE).astype(int)
        full = waiting[arriving, queue] >= bounds[queue, large]
        if event >= WARM_UP:
            came += np.bincount(2 * queue + large, minlength=len(came))
            lost += np.bincount((2 * queue + large)[full], minlength=len(came))
        waiting[np.flatnonzero(arriving)[~full], queue[~full]] += 1
        waiting[np.flatnonzero(served), (waiting[served] > 0).argmax(axis=1)] -= 1
    return (lost / came).reshape(-1, 2)


def switch() -> list[tuple[tuple[int, int], float, float]]:
    """Each queue's planned thresholds, and the predicted and the simulated share of lost packets."""
    offered = [LOAD / QUEUES] * QUEUES
    chosen = thresholds(PACKETS, offered, SMALL_SHARE, BOUND, [_weight(queue + 1) for queue in range(QUEUES)])
    predicted = [float(each.mean(SMALL_SHARE)) for each in switch_drops(offered, SMALL_SHARE, chosen)]
    drawn = draw(offered, chosen) @ [SMALL_SHARE, 1 - SMALL_SHARE]
    return list(zip(chosen, predicted, drawn.tolist(), strict=True))


def queue_table(rows: Sequence[Row]) -> str:
    """The losses of one queue."""
    header = ["load", "small: printed", "M/M/1/m", "ours", "drawn", "large: printed", "M/M/1/m", "ours", "drawn"]
    cells = []
    for each in rows:
        columns = each.printed, each.split, each.ours, each.drawn
        cells.append([f"{each.load:.2f}", *(f"{column[part]:.4f}" for part in (0, 1) for column in columns)])
    return table(header, cells)


def switch_table(rows: Sequence[tuple[tuple[int, int], float, float]]) -> str:
    """The losses of the switch's queues."""
    header = ["queue", "small from", "all from", "predicted", "drawn"]
    return table(header, [[i, *limits, f"{ours:.4f}", f"{drawn:.4f}"] for i, (limits, ours, drawn) in enumerate(rows)])


def plot(rows: Sequence[Row]) -> bytes:
    """One queue's losses by load, as PNG. Where the printed formulas leave [0, 1], they leave the picture."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    loads = [each.load for each in rows]
    for part, (axes, title) in enumerate(
        zip(figure.subplots(1, 2), ("small gradients", "large gradients"), strict=True)
    ):
        for name, style in (("printed", "o--"), ("split", "s--"), ("ours", "-"), ("drawn", "kx")):
            axes.plot(loads, [getattr(each, name)[part] for each in rows], style, label=name)
        axes.set_ylim(-0.02, 0.6)
        axes.set_title(title)
        axes.set_xlabel("load")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("share lost")
    figure.axes[0].legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(description="MLT's appendix B, theirs beside ours.")
    parser.add_argument("--out", type=Path, default=Path("build/papers"), help="folder of the files (build/papers)")
    out = parser.parse_args(argv).out
    rows = [row(load) for load in LOADS]
    lines = [
        f"one queue; small gradients, {SMALL_SHARE:.0%}, are dropped from {SMALL} waiting packets on, all from {LARGE}",
        f"shares lost; drawn: {REPLICAS} queues, {EVENTS} events of each",
        "",
        queue_table(rows),
        "",
        f"{QUEUES} queues that share {PACKETS} packets at a load of {LOAD}, planned to lose at most {BOUND:.0%}",
        "",
        switch_table(switch()),
    ]
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "thresholds.txt", "\n".join(lines) + "\n")
    files.write(out / "thresholds.png", plot(rows))


def _full(load: float, room: float) -> float:
    """Probability that an M/M/1/m queue is full, for any load but 1."""
    return (load**room - load ** (room + 1)) / (1 - load ** (room + 1))


def _weight(weight: float) -> Impact:
    return lambda lost: weight * (lost.small + 50 * lost.large)


if __name__ == "__main__":
    main()
