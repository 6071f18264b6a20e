"""The drops that a training run tolerates, as a table, JSON and a picture."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator
from typing import Any

from jaxcomm.errors import load_extra
from jaxcomm.profile import Trials
from jaxcomm.report import palette
from jaxcomm.report.tables import table


def summary(study: Trials) -> str:
    """The drop bound in a sentence, a row for every share of drops, and advice on further training runs."""
    mean, count = statistics.fmean(study.baseline), len(study.baseline)
    bound = f"{study.bound:.3g} of each gradient" if study.bound else "no share that was tried"
    rows: list[list[object]] = [["0", f"{mean:.4g}", None, None, "baseline"]]
    for trial in study.trials:
        cost = study.excess(trial)
        if cost.mean is None:
            rows.append(
                [f"{trial.share:.3g}", None, None, None, f"too much: seed {len(trial.rounds) - 1} misses the target"]
            )
        else:
            interval = f"{cost.low:+.3g} to {cost.high:+.3g}"
            rows.append([f"{trial.share:.3g}", f"{mean + cost.mean:.4g}", f"{cost.mean:+.3g}", interval, cost.verdict])
    lines = [
        f"{study.train} tolerates drops of {bound}: to {study.target:g} in {mean:.4g} rounds,",
        f"means of {count} trainings each; {study.margin:.3g} more, {study.margin * mean:.3g} rounds, are tolerated.",
        "",
        table(["lost", "rounds", "more", "90% interval", "verdict"], rows),
    ]
    return "\n".join([*lines, *_advice(study)])


def _advice(study: Trials) -> Iterator[str]:
    last = study.excess(study.trials[-1])
    if last.verdict == "undecided":
        yield "\nUndecided: the interval contains the margin; more --repeats, or a wider --margin, would decide."
    elif last.verdict == "tolerated":
        yield "\nAll shares that were tried are tolerated; larger --shares may be, too."


def document(study: Trials) -> dict[str, Any]:
    """The study as a JSON object: the drop bound, and all trials, each with the cost of its share of drops."""
    content = study.model_dump()
    for entry, trial in zip(content["trials"], study.trials, strict=True):
        entry |= study.excess(trial)._asdict()
    return {"bound": study.bound, **content}


def svg(study: Trials) -> str:
    """Draws the rounds to the target by share of drops: all runs, the means with intervals, and the tolerated range."""
    matplotlib, backend, figures = (
        load_extra(name, "a plot") for name in ("matplotlib", "matplotlib.backends.backend_svg", "matplotlib.figure")
    )
    mean = statistics.fmean(study.baseline)
    with matplotlib.rc_context({"svg.hashsalt": "jaxcomm"}):
        figure = figures.Figure(figsize=(6.4, 4.0), layout="constrained")
        backend.FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.axhline(mean, color=palette.GREY, linewidth=1)
        axes.axhspan(
            mean,
            mean * (1 + study.margin),
            color=palette.HALVING,
            alpha=0.15,
            label=f"tolerated: {study.margin:.0%} more",
        )
        points = [(0.0, count) for count in study.baseline]
        points += [(100 * each.share, count) for each in study.trials for count in each.rounds if count is not None]
        xs, ys = zip(*points, strict=True)
        axes.scatter(xs, ys, s=14, color=palette.GREY, alpha=0.5, label="a training")
        lost = [(100 * trial.share, study.excess(trial)) for trial in study.trials]
        for number, (share, cost) in enumerate(each for each in lost if each[1].mean is not None):
            assert cost.mean is not None and cost.high is not None
            label = "mean, 90 % interval of the difference" if not number else None
            reach = cost.high - cost.mean
            axes.errorbar(
                [share], [mean + cost.mean], yerr=[reach], fmt="o", color=palette.PLAN, capsize=4, label=label
            )
        for share, cost in lost:
            if cost.mean is None:
                axes.annotate("not reached", (share, mean), rotation=90, ha="center", fontsize=8)
        axes.set_xlabel("share of each gradient that is dropped, %")
        axes.set_ylabel(f"rounds to {study.target:g}")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="lower left")
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
