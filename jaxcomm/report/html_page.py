"""HTML pages that need no other file."""

from __future__ import annotations

from jaxcomm.report import palette
from jaxcomm.report.drawing import FONT, escaped


def document(title: str, *parts: str) -> str:
    """A page with a title and, below the title, the given parts in HTML."""
    style = (
        f"body{{font-family:{FONT};color:{palette.INK};margin:2em auto;max-width:70em}}"
        "svg{max-width:100%;height:auto}pre{overflow-x:auto;line-height:1.4}"
    )
    head = f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    lines = ["<!doctype html>", head, f"<style>{style}</style></head><body>", f"<h1>{title}</h1>", *parts]
    return "\n".join([*lines, "</body></html>\n"])


def preformatted(words: str) -> str:
    """Words and tables in a font of fixed width."""
    return "<pre>" + escaped(words, keep="\n") + "</pre>"
