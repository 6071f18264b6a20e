"""Scripts with which shells complete commands, options and files. The package shtab writes them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from jaxcomm.cli.exit_codes import BAD_USAGE, CommandError
from jaxcomm.errors import load_extra

SHELLS: Final = ("bash", "zsh", "fish")
_USE: Final = "jaxcomm --print-completion"


def script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Returns the script for a shell.

    Args:
      shell: one of `SHELLS`.
      parsers: the parser of each command. A name of two words is a command in the group named by the first word.

    Raises:
      CommandError: no such shell.
      JaxcommError: the package shtab is not installed.
    """
    if shell not in SHELLS:
        raise CommandError(f"--print-completion is {shell!r}.\n  Cure: one of {', '.join(SHELLS)}.", BAD_USAGE)
    shtab = load_extra("shtab", _USE)
    root = argparse.ArgumentParser(prog="jaxcomm")
    root.add_argument("--version", action="store_true", help="print the version")
    root.add_argument("--print-completion", choices=SHELLS, help="print a shell's script")
    commands = root.add_subparsers()
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for name, parser in sorted(parsers.items()):  # a group's own command comes before the group's members
        for action in parser._actions:
            if action.nargs != 0 and action.choices is None and action.type is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # texts are mostly the paths of files
        first, _, second = name.partition(" ")
        if not second:
            _add(commands, first, parser)
            continue
        if first not in groups:
            if first not in parsers:
                _add(commands, first, argparse.ArgumentParser(prog=f"jaxcomm {first}", description=f"{first} …"))
            groups[first] = commands.choices[first].add_subparsers()
        _add(groups[first], second, parser)
    completion: str = shtab.complete(root, shell=shell)
    return completion


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, parser: argparse.ArgumentParser
) -> None:
    made = commands.add_parser(
        name, help=parser.description, parents=[parser], add_help=False, conflict_handler="resolve"
    )
    made.description = parser.description
