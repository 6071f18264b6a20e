"""What the demo found and gained: for the terminal, and as a Markdown page."""

from __future__ import annotations

import textwrap
from typing import Any

from jaxcomm.report.tables import bytes_text

_FILES = {
    "report.json": "everything below as numbers",
    "loss.png": "the training loss with either collective",
    "timeline.svg": "the chosen schedule, round by round",
    "plan.json": "the plan; `jaxcomm explain` says why",
    "profile.json": "the measurements that the plan rests on",
}


def screen(report: dict[str, Any], folder: str, program: str) -> str:
    """The demo's last screen.

    Args:
      report: the content of report.json.
      folder: where the files are.
      program: how this command was called.
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

![timeline](timeline.svg)

{_gained(report)} {_checked(report)}

![loss](loss.png)

| | lax.pmean | jaxcomm.pmean |
|---|---|---|
| median step, ms | {report["step_ms_lax"]:.1f} | {report["step_ms_jaxcomm"]:.1f} |
| final training loss | {report["final_loss_lax"]:.6f} | {report["final_loss_jaxcomm"]:.6f} |

{_alone(report)}

| from the late rank's arrival to the end, ms | {" | ".join(alone["measured"])} |
|---|---|---|---|
| predicted | {_milliseconds(alone["predicted"])} |
| measured, same executor | {_milliseconds(alone["measured"])} |

Proved: {report["proof"]}.

The trainings took turns in one process, so that what disturbs the machine disturbs both. `predicted_gain` and
`measured_gain` are the share of the ring's time, in the table above, that the plan saves.
{report["seconds"]:.0f} s in all.

{chr(10).join(f"- [{name}]({name}): {meaning}" for name, meaning in _FILES.items())}
"""


def _found(report: dict[str, Any]) -> str:
    late = report["straggler"]
    return (
        f"Rank {late['rank']} of {report['devices']} is late: last in {late['late_steps']} of {late['steps']} steps, "
        f"by {late['median_ms']:.1f} ms (median). In training, where the devices share this machine's processors, it "
        f"was last in {report['last_in_training'][late['rank']]} of {report['steps']} steps."
    )


def _planned(report: dict[str, Any]) -> str:
    return (
        f"For a gradient of {bytes_text(report['gradient_bytes'])}: {report['schedule']} "
        f"(plan {report['plan_hash'][:12]}, proved)."
    )


def _gained(report: dict[str, Any]) -> str:
    ours, theirs = report["step_ms_jaxcomm"], report["step_ms_lax"]
    gain = 1 - ours / theirs
    verdict = f"{gain:.0%} less" if gain > 0 else f"{-gain:.0%} more, so nothing was gained here"
    return (
        f"A training step takes {ours:.1f} ms with jaxcomm.pmean and {theirs:.1f} ms with lax.pmean: {verdict} "
        f"(medians of {report['timed_steps']} steps each, taking turns)."
    )


def _alone(report: dict[str, Any]) -> str:
    measured = report["collective_ms"]["measured"]
    return (
        f"The collective alone ends {measured['plan']:.2f} ms after the late rank's arrival under the plan, "
        f"{measured['direct']:.2f} ms without a plan (direct) and {measured['ring']:.2f} ms under a ring: "
        f"{report['measured_gain']:.0%} less than the ring, {report['predicted_gain']:.0%} was predicted."
    )


def _milliseconds(by_name: dict[str, float]) -> str:
    return " | ".join(f"{value:.2f}" for value in by_name.values())


def _checked(report: dict[str, Any]) -> str:
    return (
        f"Same seeds, same data: final losses {report['final_loss_jaxcomm']:.6f} and {report['final_loss_lax']:.6f}; "
        f"parameters differ by at most {report['max_abs_param_diff']:.1e}."
    )
