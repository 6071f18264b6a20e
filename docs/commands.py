"""The directive `jaxcomm-commands`: every command of the command line with the text of its `--help`."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from jaxcomm import cli
from jaxcomm.cli import dispatch

COLUMNS = "88"


class Commands(SphinxDirective):
    """A section per command."""

    def run(self) -> list[nodes.Node]:
        """The sections; each command's name can be linked to by `command-NAME`."""
        return [self._section(name) for name in dispatch.COMMANDS]

    def _section(self, name: str) -> nodes.section:
        section = nodes.section(ids=[f"command-{name.replace(' ', '-')}"], names=[f"command {name}"])
        section += nodes.title("", "", nodes.literal("", f"jaxcomm {name}"))
        section += nodes.literal_block("", _help(name), language="none")
        return section


def _help(name: str) -> str:
    text = io.StringIO()
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), COLUMNS
    try:
        with contextlib.redirect_stdout(text):
            code = cli.main([*name.split(), "--help"])
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    if code:
        raise RuntimeError(f"jaxcomm {name} --help ended with {code}")
    return text.getvalue()


def setup(app: Any) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("jaxcomm-commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
