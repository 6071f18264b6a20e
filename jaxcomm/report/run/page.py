"""A run as one HTML page: the picture, and below it the tables."""

from __future__ import annotations

from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report.html_page import document, preformatted
from jaxcomm.report.run.picture import svg
from jaxcomm.report.run.words import in_force, summary


def html(run: SavedRun) -> str:
    """The page, which needs no other file. Shapes of the picture show their numbers when a reader points at them."""
    written = f"{run.written:%Y-%m-%d %H:%M:%S} UTC" if run.written else "an unknown time"
    return document(
        "A run of jaxcomm",
        f"<p>Written at {written}, {run.at_s:.1f} s after the run began.</p>",
        svg(run),
        f"<h2>In force</h2>{preformatted(in_force(run, run.written))}" if run.written else "",
        f"<h2>Calls</h2>{preformatted(summary(run))}",
    )
