"""Table I of the Nezha paper, and its gains of two rails over one: theirs beside jaxcomm's split of the same tables.

    python benchmarks/papers/nezha.py --out DIR

Prints the tables, and writes them and a plot to DIR. "Theirs" are measurements of real networks. "Ours" are the
predictions and choices of `jaxcomm plan`, from Table I's two columns of single rails.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", Table I (latencies on 4 nodes),
section 5.2 (gains and thresholds) and section 5.3.2 (slowdown of rails that run together).
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxcomm import files
from jaxcomm.plan.rails import Rails, Share
from jaxcomm.planner import rails
from jaxcomm.planner.rails.split import fastest_rail, slicing
from jaxcomm.planner.rails.times import options
from jaxcomm.profile import Link, Profile, Provenance, Rail, Sample
from jaxcomm.report.plan.rails import shares_text
from jaxcomm.report.tables import bytes_text, table

KB, MB = 2**10, 2**20
SIZES: Final = (KB, 8 * MB, 64 * MB)
ALONE: Final = {"SHARP": (9, 22140, 181484), "TCP": (982, 37137, 316323)}  # microseconds, Table I
THEIRS: Final = {  # share of TCP, or None for slicing, with microseconds, Table I
    "1/1": (0.5, (987, 21265, 178373)),
    "99/1": (0.99, (984, 37141, 314913)),
    "1/99": (0.01, (991, 23911, 188137)),
    "slices": (None, (1002, 31013, 257135)),
}
SLOWDOWN: Final = {4: {"TCP": 1.097, "SHARP": 1.156}, 8: {"TCP": 1.083, "SHARP": 1.134}}  # section 5.3.2
GAINS: Final = {  # greatest gain of throughput over the best rail alone, 512 KB to 64 MB, section 5.2
    ("TCP", "TCP"): {4: 0.84, 8: 0.87},
    ("TCP", "SHARP"): {4: 0.52, 8: 0.63},
}
THRESHOLDS: Final = {4: 256 * KB, 8: 128 * KB}  # of TCP-TCP
NOMINAL: Final = 12.5e9  # bytes per second of either NIC, Table II


class Gain(NamedTuple):
    """The greatest throughput gain of two rails over the better one alone, theirs and ours, and our threshold."""

    pair: tuple[str, str]
    nodes: int
    theirs: float
    ours: float
    threshold: int | None


def cluster(pair: Sequence[str], nodes: int) -> Profile:
    """The profile of two rails with the latencies of Table I, which are those of 4 nodes."""
    members = []
    for number, kind in enumerate(pair):
        table = [Sample(bytes=size, seconds=time / 1e6) for size, time in zip(SIZES, ALONE[kind], strict=True)]
        slowdown = SLOWDOWN[nodes][kind]
        name = f"{kind}{number}" if pair[0] == pair[1] else kind
        members.append(Rail(name=name, transport=kind, latency=table, slowdown=slowdown, bytes_per_s=NOMINAL))
    return Profile(
        ranks=nodes,
        link=Link(alpha_s=0.0, beta_s_per_byte=0.0, source="not used"),
        rails=members,
        provenance=Provenance(source="Table I", tool="nezha.py"),
    )


def modelled(given: Profile, nbytes: int, tcp: float | None) -> float:
    """Our prediction for one of their splits: the share `tcp` on TCP; None: in slices."""
    if tcp is None:
        return slicing([options(given, rail) for rail in given.rails], nbytes)
    return rails.seconds(given, [Share(rail="TCP", share=tcp), Share(rail="SHARP", share=1 - tcp)], nbytes)


def gain(pair: tuple[str, str], nodes: int) -> Gain:
    """The greatest gain of our split, over the sizes of their range."""
    given = cluster(pair, nodes)
    found = decided(given)
    sizes = [512 * KB * 2**i for i in range(8)]
    gains = []
    for nbytes in sizes:
        alone = fastest_rail([options(given, rail) for rail in given.rails], nbytes).seconds(nbytes)
        gains.append(alone / rails.seconds(given, found.split_for(nbytes), nbytes) - 1)
    return Gain(pair, nodes, GAINS[pair][nodes], max(gains), found.threshold_bytes)


def decided(given: Profile) -> Rails:
    """Our split for every size."""
    found = rails.decide(given)
    assert found is not None  # the profile has rails
    return found


def split_table(given: Profile) -> str:
    """Table I: their latencies in microseconds, our predictions for the same splits, and the ratio ours / theirs."""
    header = ["bytes", *(f"{kind} alone" for kind in ALONE)]
    for name in THEIRS:
        header += [f"T/S {name}", "model", "ratio"]
    cells = []
    for row, nbytes in enumerate(SIZES):
        line: list[object] = [bytes_text(nbytes), *(times[row] for times in ALONE.values())]
        for tcp, times in THEIRS.values():
            ours = 1e6 * modelled(given, nbytes, tcp)
            line += [times[row], f"{ours:.0f}", f"{ours / times[row]:.3f}"]
        cells.append(line)
    return table(header, cells)


def choice_table(given: Profile) -> str:
    """Our choice at the sizes of Table I, compared with the best that they measured."""
    found, cells = decided(given), []
    for row, nbytes in enumerate(SIZES):
        shares = found.split_for(nbytes)
        ours = 1e6 * rails.seconds(given, shares, nbytes)
        rail, split = min(times[row] for times in ALONE.values()), min(times[row] for _, times in THEIRS.values())
        reason = found.range_for(nbytes).reason
        ratios = [f"{ours / rail:.3f}", split, f"{ours / split:.3f}"]
        cells.append([bytes_text(nbytes), shares_text(shares), reason, f"{ours:.0f}", rail, *ratios])
    return table(["bytes", "ours", "why", "µs", "best rail", "ratio", "their best split", "ratio"], cells)


def gain_table(gains: Sequence[Gain]) -> str:
    """Their gains and ours, and the sizes from which buffers are split."""
    header = ["rails", "nodes", "gain theirs", "ours", "throughput ratio", "split from theirs", "ours"]
    cells = []
    for each in gains:
        theirs = bytes_text(THRESHOLDS[each.nodes]) if each.pair == ("TCP", "TCP") else None
        ours = bytes_text(each.threshold) if each.threshold is not None else None
        ratio = f"{(1 + each.ours) / (1 + each.theirs):.3f}"
        cells.append(["-".join(each.pair), each.nodes, f"{each.theirs:.0%}", f"{each.ours:.0%}", ratio, theirs, ours])
    return table(header, cells)


def plot(given: Profile) -> bytes:
    """Time over size as PNG: their measurements as points, our predictions as lines."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = [KB * 2 ** (step / 4) for step in range(4 * 16 + 1)]
    found = decided(given)
    curves = {f"{kind} alone": [Share(rail=kind, share=1.0)] for kind in ALONE}
    curves |= {"T/S 1/1": [Share(rail="TCP", share=0.5), Share(rail="SHARP", share=0.5)]}
    for color, (name, shares) in enumerate(curves.items()):
        seconds = [rails.seconds(given, shares, round(size)) for size in sizes]
        axes.plot(sizes, seconds, color=f"C{color}", label=f"{name}: predicted", zorder=1)
        times = THEIRS["1/1"][1] if name == "T/S 1/1" else ALONE[name.split()[0]]
        axes.plot(SIZES, [time / 1e6 for time in times], "o", color=f"C{color}", label=f"{name}: measured")
    axes.plot(SIZES, [time / 1e6 for time in THEIRS["slices"][1]], "s", color="C3", label="T/S slices: measured")
    ours = [rails.seconds(given, found.split_for(round(size)), round(size)) for size in sizes]
    axes.plot(sizes, ours, "--", color="black", label="our split: predicted")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(size))
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("seconds of an allreduce over TCP and SHARP, 4 nodes")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def lines() -> Iterator[str]:
    """The script's output."""
    given = cluster(("TCP", "SHARP"), 4)
    yield "Table I: microseconds of an allreduce over TCP and SHARP, 4 nodes; ratio: model / measured\n"
    yield split_table(given)
    yield "\nThe split that ours chooses from the columns of single rails; µs predicted, the others measured\n"
    yield choice_table(given)
    yield "\nMost throughput gained over the best rail alone, 512 KiB to 64 MiB\n"
    yield gain_table([gain(pair, nodes) for pair, each in GAINS.items() for nodes in each])


def main(argv: Sequence[str] | None = None) -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(description="Nezha's Table I, theirs beside ours.")
    parser.add_argument("--out", type=Path, default=Path("build/papers"), help="folder of the files (build/papers)")
    out = parser.parse_args(argv).out
    text = "\n".join(lines())
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "nezha.txt", text + "\n")
    files.write(out / "nezha.png", plot(cluster(("TCP", "SHARP"), 4)))


if __name__ == "__main__":
    main()
