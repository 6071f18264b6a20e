"""Table II of the DS-Sync paper: one synchronisation by six methods, its formulas beside jaxcomm's groups and rings.

    python benchmarks/papers/groups.py --out DIR

Prints the tables, and writes them and the plot to DIR. "Theirs" are the paper's formulas. "Ours" are α–β times of rings
in the same groups, and of the groups that `jaxcomm plan` chooses.

Source: Wang et al., "DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization for Distributed
DNN Training", Table II, and section V for the setting: 2 racks of 4 workers, 20 Gb Ethernet. The paper states neither α
nor the uplink's rate under contention. We assume α = 50 µs, uplinks 1 to 8 times as slow, and a model of 36.5 million
parameters of 4 bytes (Wide ResNet-28-10).
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxcomm import files
from jaxcomm.planner.groups import decide
from jaxcomm.profile import Link, Profile, Provenance, Rack
from jaxcomm.report.tables import table
from jaxcomm.simulate import baselines

NBYTES: Final = 146_000_000
ALPHA: Final = 50e-6  # seconds per hop
BETA: Final = 8 / 20e9  # seconds per byte
RACKS: Final = 2
PER_RACK: Final = 4
UPLINKS: Final = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0]
# Tables IV and V, CIFAR-10, 4 + 4 workers: measured ms per iteration with and without a background task on the uplink.
MEASURED: Final = {
    "no contention": {"ring": 266.1, "hierarchical": 390.8, "gossip": 376.9, "ds_sync": 200.1},
    "contended uplink": {"ring": 525.1, "hierarchical": 515.3, "gossip": 764.1, "ds_sync": 331.7},
}
CONTENDED: Final = {"no contention": 1.0, "contended uplink": 2.0}  # the uplink that each setting is compared with


class Row(NamedTuple):
    """Seconds for one uplink: the paper's formulas, its pattern in rings, jaxcomm's groups. Rates: ρ per iteration."""

    uplink: float
    theirs: dict[str, float]
    pattern: float
    pattern_rate: float
    ours: float
    rate: float


def row(uplink: float, racks: int = RACKS, per_rack: int = PER_RACK) -> Row:
    """Both sides, for racks whose uplinks take `uplink` times as long per byte as links within a rack."""
    given = baselines.RackedWorkers(racks, per_rack, NBYTES, ALPHA, BETA, BETA * uplink)
    methods = ("ps", "ring", "double_tree", "hierarchical", "gossip", "ds_sync")
    workers = range(racks * per_rack)
    cluster = Profile(
        ranks=len(workers),
        link=Link(alpha_s=ALPHA, beta_s_per_byte=BETA, source="20 Gb Ethernet"),
        racks=[
            Rack(name=str(index), ranks=[*workers[index * per_rack : (index + 1) * per_rack]], uplink=uplink)
            for index in range(racks)
        ],
        provenance=Provenance(source="DS-Sync, section V", tool="groups.py"),
    )
    groups = decide(cluster, NBYTES)
    assert groups  # there are several racks
    pattern = groups.pattern
    return Row(
        uplink,
        {name: getattr(baselines, name)(given).seconds for name in methods},
        pattern.seconds,
        pattern.rho ** (1 / pattern.period),
        max(groups.seconds),
        groups.rate,
    )


def cost_table(rows: Sequence[Row]) -> str:
    """Milliseconds of the table's formulas."""
    names = [*rows[0].theirs]
    header = ["uplink", *(f"{name.replace('_', ' ')} ms" for name in names)]
    return table(header, [[f"{each.uplink:g}", *(f"{1e3 * each.theirs[name]:.1f}" for name in names)] for each in rows])


def group_table(rows: Sequence[Row]) -> str:
    """The table's DS-Sync beside rings in the paper's pattern and in jaxcomm's groups, and how soon workers agree."""
    header = ["uplink", "DS-Sync theirs ms", "pattern in rings", "ratio", "ours", "ratio", "ours / ring"]
    header += ["left per iteration: pattern", "ours"]
    cells = []
    for each in rows:
        theirs = each.theirs["ds_sync"]
        times = [f"{1e3 * each.pattern:.1f}", f"{each.pattern / theirs:.3f}"]
        times += [f"{1e3 * each.ours:.1f}", f"{each.ours / theirs:.3f}", f"{each.ours / each.theirs['ring']:.3f}"]
        rates = [f"{each.pattern_rate:.3f}", f"{each.rate:.3f}"]
        cells.append([f"{each.uplink:g}", f"{1e3 * theirs:.1f}", *times, *rates])
    return table(header, cells)


def measured_table(rows: Sequence[Row]) -> str:
    """Their measurements relative to their allreduce, beside their formulas and our rings relative to a ring."""
    cells = []
    for name, measured in MEASURED.items():
        found = next(each for each in rows if each.uplink == CONTENDED[name])
        for method, milliseconds in measured.items():
            ring = found.theirs["ring"]
            rings = {"ds_sync": f"{found.pattern / ring:.3f}"}.get(method)
            ratios = [f"{milliseconds / measured['ring']:.3f}", f"{found.theirs[method] / ring:.3f}", rings]
            cells.append([name, f"{found.uplink:g}", method.replace("_", " "), *ratios])
    return table(["setting", "uplink", "method", "they measured", "their formula", "pattern in rings"], cells)


def plot(rows: Sequence[Row]) -> bytes:
    """Milliseconds by uplink as PNG."""
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    uplinks = [each.uplink for each in rows]
    for name in rows[0].theirs:
        label = f"theirs: {name.replace('_', ' ')}"
        axes.plot(uplinks, [1e3 * each.theirs[name] for each in rows], "o--", markersize=4, label=label)
    axes.plot(uplinks, [1e3 * each.pattern for each in rows], "^-", markersize=4, label="ours: their pattern in rings")
    axes.plot(uplinks, [1e3 * each.ours for each in rows], "s-", markersize=4, label="ours: groups")
    axes.set_yscale("log")
    axes.set_xlabel("time of a byte between racks, relative to within one")
    axes.set_ylabel("ms per synchronisation")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(description="DS-Sync's Table II, theirs beside ours.")
    parser.add_argument("--out", type=Path, default=Path("build/papers"), help="folder of the files (build/papers)")
    out = parser.parse_args(argv).out
    rows = [row(uplink) for uplink in UPLINKS]
    lines = [
        f"{RACKS} racks of {PER_RACK}, {NBYTES / 1e6:g} MB, α = 50 µs, 20 Gb/s within a rack; uplink: a byte's time, "
        "relative to that",
        "PS: one server; double tree: in the best number of chunks",
        "",
        cost_table(rows),
        "",
        "ratio: to the table's DS-Sync; left per iteration: of the distance from agreement, at most, on average",
        "",
        group_table(rows),
        "",
        "relative to an allreduce of all; the uplink of a contended one is taken to be half as fast",
        "",
        measured_table(rows),
    ]
    print("\n".join(lines))
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "groups.txt", "\n".join(lines) + "\n")
    files.write(out / "groups.png", plot(rows))


if __name__ == "__main__":
    main()
