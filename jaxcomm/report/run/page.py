"""A run as one HTML page: the picture, and below it the tables."""

from __future__ import annotations

from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report import palette
from jaxcomm.report.drawing import FONT, escaped
from jaxcomm.report.run.picture import svg
from jaxcomm.report.run.words import in_force, summary


def html(run: SavedRun) -> str:
    """The page, which needs no other file. Shapes of the picture show their numbers when a reader points at them."""
    written = f"{run.written:%Y-%m-%d %H:%M:%S} UTC" if run.written else "an unknown time"
    style = (
        f"body{{font-family:{FONT};color:{palette.INK};margin:2em auto;max-width:70em}}"
        "svg{max-width:100%;height:auto}pre{overflow-x:auto;line-height:1.4}"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>A run of jaxcomm</title>',
        f"<style>{style}</style></head><body>",
        "<h1>A run of jaxcomm</h1>",
        f"<p>Written at {written}, {run.at_s:.1f} s after the run began.</p>",
        svg(run),
        f"<h2>In force</h2>{_lines(in_force(run, run.written))}" if run.written else "",
        f"<h2>Calls</h2>{_lines(summary(run))}",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _lines(words: str) -> str:
    return "<pre>" + escaped(words, keep="\n") + "</pre>"
