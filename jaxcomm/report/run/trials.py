"""The trials of plans in a run: the gain of each call site's plan, and the sizes to measure where no plan gains."""

from __future__ import annotations

import textwrap

from jaxcomm.profile.run_file import RunSite, SavedRun
from jaxcomm.profile.run_statistics import planned
from jaxcomm.report.run.sites import ERRORS
from jaxcomm.report.tables import bytes_text, seconds_text, table

_NONE = (
    "No call site has tried a plan: either no plan was followed, or it runs the default schedule there, or trials were "
    "turned off, or no call ran on CPUs."
)
_VERDICTS = {"kept": "gains, and stays", "dropped": "no clear gain: the default runs", "open": "not decided yet"}


def trials(run: SavedRun, where: str) -> str:
    """One row per call site that has tried a plan, then the commands to run next.

    Args:
      run: the saved records.
      where: path of the run's file, which the commands name.

    Returns:
      Lines without a trailing newline.
    """
    tried = [site for site in run.sites if site.trial]
    if not tried:
        return textwrap.fill(_NONE, 110)
    head = ["site", "bytes", "plan", "its schedule", "the plan", "the default", "saves", "95 %", "calls", "verdict"]
    parts = [table(head, [_row(run, site) for site in tried])]
    dropped = sorted({site.bytes for site in tried if site.trial and site.trial.outcome == "dropped"})
    if any(site.trial and site.trial.outcome != "open" for site in tried):
        parts.append(f"To let the next plan use these results: jaxcomm profile import {where} --into profile.json")
    if dropped:
        sizes = ",".join(str(nbytes) for nbytes in dropped)
        parts.append(textwrap.fill(f"To time other schedules at these sizes: jaxcomm profile --sizes {sizes}", 110))
    return "\n\n".join(parts)


def _row(run: SavedRun, site: RunSite) -> list[object]:
    trial = site.trial
    assert trial
    entry = planned(run, site)
    chunks = f", {entry.name.chunks} chunks" if entry and entry.name and entry.name.chunks else ""
    error = ERRORS * trial.gain_error
    return [
        site.name,
        bytes_text(site.bytes),
        site.plan,
        f"{entry.schedule}{chunks}" if entry else None,
        seconds_text(trial.plan_s),
        seconds_text(trial.default_s),
        f"{trial.gain:.1%}",
        f"{trial.gain - error:.1%} to {trial.gain + error:.1%}",
        f"{trial.calls[0]}, {trial.calls[1]}",
        _VERDICTS[trial.outcome],
    ]
