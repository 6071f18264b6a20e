"""The demo's report: for the terminal, and as a Markdown page."""

from __future__ import annotations

import textwrap
from typing import Any

from jaxcomm.report.tables import bytes_text

TRAININGS = {"lax": "lax.pmean", "direct": "jaxcomm.pmean, no plan", "jaxcomm": "jaxcomm.pmean, the plan"}
_FILES = {
    "report.json": "everything below as numbers",
    "loss.png": "the training losses over the seconds of training",
    "timeline.svg": "the chosen schedule, round by round",
    "plan.json": "the plan; `jaxcomm explain` says why",
    "profile.json": "the measurements that the plan rests on",
}


def screen(report: dict[str, Any], folder: str, program: str) -> str:
    """The demo's last screen.

    Args:
      report: the content of report.json.
      folder: the folder with the files.
      program: the name by which this command was called.
    """
    parts = {
        "Found": _found(report),
        "Planned": _planned(report),
        "Gained": f"{_gained(report)} {_alone(report)}",
        "Checked": _checked(report),
        "Files": f"{folder}/report.md, {', '.join(_FILES)}",
        "Next": f"{program} explain {folder}/plan.json",
        "": f'in your own step: lax.pmean → jaxcomm.pmean, and jaxcomm.use_plan("{folder}/plan.json")',
    }
    return "\n".join(
        textwrap.fill(text, 112, initial_indent=f"{name:<10}", subsequent_indent=10 * " ")
        for name, text in parts.items()
    )


def markdown(report: dict[str, Any]) -> str:
    """The page report.md."""
    alone = report["collective_ms"]
    return f"""\
# jaxcomm demo

{_found(report)}

{_planned(report)}

![The schedule's rounds from left to right, a row for each rank: who receives which chunk from whom.](timeline.svg)

{_gained(report)} {_checked(report)}

![The training losses fall over the seconds of training, one line for each of the trainings below.](loss.png)

| | {" | ".join(TRAININGS.values())} |
|---|---|---|---|
| median step, ms | {" | ".join(f"{value:.1f}" for value in _each(report, "step_ms"))} |
| final training loss | {" | ".join(f"{value:.6f}" for value in _each(report, "final_loss"))} |

{_alone(report)}

| from the late rank's arrival to the end, ms | {" | ".join(alone["measured"])} |
|---|---|---|---|
| predicted | {_milliseconds(alone["predicted"])} |
| measured, same executor | {_milliseconds(alone["measured"])} |

Proved: {report["proof"]}.

The trainings took turns in one process, so that a disturbed machine affects all of them. `predicted_gain` and
`measured_gain` are the share of the ring's time, in the table above, that the plan saves.
{report["seconds"]:.0f} s in all.

{chr(10).join(f"- [{name}]({name}): {meaning}" for name, meaning in _FILES.items())}
"""


def _found(report: dict[str, Any]) -> str:
    late = report["straggler"]
    who = f"Rank {late['rank']} of {report['devices']} is late"
    if not late["is_late"]:
        who = (
            f"No rank of {report['devices']} is late beyond chance, or enough to matter; most often rank {late['rank']}"
        )
    return (
        f"{who}: last in {late['late_steps']} of {late['steps']} steps, "
        f"by {late['median_ms']:.1f} ms (median). In training, where the devices share this machine's processors, it "
        f"was last in {report['last_in_training'][late['rank']]} of {report['steps']} steps."
    )


def _planned(report: dict[str, Any]) -> str:
    return (
        f"For a gradient of {bytes_text(report['gradient_bytes'])}: {report['schedule']} "
        f"(plan {report['plan_hash'][:12]}, proved)."
    )


def _gained(report: dict[str, Any]) -> str:
    theirs, direct, ours = _each(report, "step_ms")
    gain = 1 - ours / theirs
    verdict = _saving(gain) if gain > 0 else f"{_saving(gain)}, so nothing was gained here"
    return (
        f"A training step takes {ours:.1f} ms with jaxcomm.pmean under the plan and {theirs:.1f} ms with lax.pmean: "
        f"{verdict} (medians of {report['timed_steps']} steps each, taking turns). jaxcomm's executor alone, without a "
        f"plan, takes {direct:.1f} ms, {_change(theirs, direct)} than lax.pmean; under the plan it is "
        f"{_change(direct, ours)}."
    )


def _saving(gain: float) -> str:
    return f"{abs(gain):.0%} {'less' if gain >= 0 else 'more'}"


def _change(before: float, after: float) -> str:
    """The difference of two times in milliseconds."""
    return f"{abs(after - before):.1f} ms {'less' if after <= before else 'more'}"


def _alone(report: dict[str, Any]) -> str:
    measured = report["collective_ms"]["measured"]
    return (
        f"The collective alone ends {measured['plan']:.2f} ms after the late rank's arrival under the plan, "
        f"{measured['direct']:.2f} ms without a plan (direct) and {measured['ring']:.2f} ms under a ring: "
        f"{_saving(report['measured_gain'])} than the ring; {_saving(report['predicted_gain'])} was predicted."
    )


def _milliseconds(by_name: dict[str, float]) -> str:
    return " | ".join(f"{value:.2f}" for value in by_name.values())


def _checked(report: dict[str, Any]) -> str:
    losses = ", ".join(f"{value:.6f}" for value in _each(report, "final_loss"))
    return (
        f"Same seeds, same data: final losses {losses}; parameters differ by at most "
        f"{report['max_abs_param_diff']:.1e}."
    )


def _each(report: dict[str, Any], name: str) -> list[float]:
    """One number of each training run, in the order of `TRAININGS`."""
    return [report[f"{name}_{training}"] for training in TRAININGS]
