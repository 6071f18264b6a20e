"""Figure 14 of the MLT paper: average and tail flow completion times of five transports over network sizes.

    python benchmarks/papers/mlt.py --out DIR

Prints the tables, and writes them and the plot to DIR. "Ours" is a simulation in steps of one round trip:
mlt_traffic.py has the flows, mlt_fabric.py the ports, mlt_schemes.py the transports.

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", NSDI 2024, sections 6.2
and 6.3. The figure gives no numbers; "theirs" are the greatest reductions that the text states.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mlt_fabric import completion_s
from mlt_schemes import SCHEMES
from mlt_traffic import RACKS, flows, googlenet, resnet50

from jaxcomm import files
from jaxcomm.report.tables import table

MODELS: Final = {"ResNet50": resnet50, "GoogleNet": googlenet}
HOSTS: Final = [36, 72, 144]
COMPRESSIONS: Final = [1, 32]  # sections 2.2 and 6.3 compress gradients up to 32 times
SEEDS: Final = [0, 1]
THEIRS: Final = {  # greatest reduction of average and tail by MLT, in percent
    ("ResNet50", "DCTCP"): (43.1, 91.8),
    ("ResNet50", "PIAS"): (44.8, 91.8),
    ("ResNet50", "pFabric"): (35.5, 88.6),
    ("ResNet50", "NDP"): (6.7, 10.3),
    ("GoogleNet", "DCTCP"): (35.1, 91.7),
    ("GoogleNet", "PIAS"): (38.0, 91.9),
    ("GoogleNet", "pFabric"): (43.5, 91.7),
    ("GoogleNet", "NDP"): (7.7, 8.7),
}


class Times(NamedTuple):
    """Seconds over all flows of all seeds: their mean, the 99th percentile, and the flow that takes longest."""

    average: float
    tail: float
    longest: float


Results = Mapping[tuple[str, int], Times]  # by scheme and hosts


def results(model: str, compression: int, hosts: Sequence[int], seeds: Sequence[int]) -> Results:
    """Times of every scheme on the same flows."""
    found = {}
    for count in hosts:
        print(f"{model}, compressed {compression}×, {count} hosts", file=sys.stderr, flush=True)
        steps = [flows(MODELS[model](), count // RACKS, compression, np.random.default_rng(seed)) for seed in seeds]
        for name, scheme in SCHEMES.items():
            runs = [completion_s(step, scheme, np.random.default_rng(s)) for s, step in zip(seeds, steps, strict=True)]
            seconds = np.concatenate(runs)
            found[name, count] = Times(float(seconds.mean()), float(np.quantile(seconds, 0.99)), float(seconds.max()))
    return found


def reductions(found: Results, scheme: str) -> Times:
    """MLT's reduction of a scheme's times in percent, the greatest over the network sizes."""
    hosts = {count for _, count in found}
    pairs = [(found["MLT", count], found[scheme, count]) for count in hosts]
    lower = [[100 * (1 - ours / other) for ours, other in zip(*pair, strict=True)] for pair in pairs]
    return Times(*map(max, zip(*lower, strict=True)))


def times_table(found: Results) -> str:
    """Milliseconds of every scheme at every size."""
    hosts = sorted({count for _, count in found})
    header = ["scheme", *(f"{what} {hosts[0]}" if n == hosts[0] else f"{n}" for what in Times._fields for n in hosts)]
    cells: list[list[object]] = []
    for name in SCHEMES:
        times = [found[name, count] for count in hosts]
        cells.append([name, *(f"{1e3 * value:.3f}" for column in zip(*times, strict=True) for value in column)])
    return table(header, cells)


def reduction_table(model: str, found: Results) -> str:
    """MLT's reduction of each scheme's times, theirs beside ours."""
    header = ["MLT lower than"]
    for what in ("average", "tail"):
        header += [f"{what} theirs %", "ours %", "ratio"]
    cells = []
    for (of, scheme), theirs in THEIRS.items():
        if of == model:
            line: list[object] = [scheme]
            for their, our in zip(theirs, reductions(found, scheme), strict=False):
                line += [f"{their:.1f}", f"{our:.1f}", f"{our / their:.2f}"]
            cells.append(line)
    return table(header, cells)


def plot(panels: Mapping[tuple[int, str], Results]) -> bytes:
    """The figure as PNG: a row for each compression; average and tail of each model."""
    figure = Figure(figsize=(14, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = iter(figure.subplots(len(COMPRESSIONS), 2 * len(MODELS), squeeze=False).flat)
    for (compression, model), found in panels.items():
        for what in ("average", "tail"):
            here = next(axes)
            for name in SCHEMES:
                here.plot(HOSTS, [1e3 * getattr(found[name, count], what) for count in HOSTS], "o-", label=name)
            here.set_title(f"{model}, compressed {compression}×: {what} FCT", fontsize=10)
            here.set_xticks(HOSTS)
            here.set_xlabel("hosts")
            here.set_ylabel("ms")
            here.set_ylim(bottom=0)
            here.grid(visible=True, alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    return picture.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(description="MLT's Figure 14, theirs beside ours.")
    parser.add_argument("--out", type=Path, default=Path("build/papers"), help="folder of the files (build/papers)")
    out = parser.parse_args(argv).out
    panels = {
        (compression, model): results(model, compression, HOSTS, SEEDS)
        for compression, model in itertools.product(COMPRESSIONS, MODELS)
    }
    lines = [
        f"ms of the flows of one training step, pushes and pulls, by number of hosts; {len(SEEDS)} seeds",
        "tail: 99th percentile; longest: the flow that takes longest",
        "reductions: at most over the network sizes; ratio: ours / theirs; the paper names no compression here",
    ]
    for (compression, model), found in panels.items():
        title = f"{model}, gradients compressed {compression}×" if compression > 1 else f"{model}, whole gradients"
        lines += ["", title, "", times_table(found), "", reduction_table(model, found)]
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "mlt.txt", "\n".join(lines) + "\n")
    files.write(out / "mlt.png", plot(panels))


if __name__ == "__main__":
    main()
