"""Finds the command that is asked for, and parses its arguments."""

from __future__ import annotations

import difflib
import importlib
import sys
import textwrap
from argparse import RawDescriptionHelpFormatter
from typing import NoReturn

from absl import flags
from absl.flags import argparse_flags

import jaxcomm
from jaxcomm.cli import BAD_USAGE, COMMANDS, OK
from jaxcomm.errors import JaxcommError


def dispatch(words: list[str]) -> int:
    """Runs the command that the words after `jaxcomm` name, and returns its exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return OK
    if words[0] == "--version":
        print(f"jaxcomm {jaxcomm.__version__}")
        return OK
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
    if name is None:
        return _unknown(words[0])
    command = importlib.import_module("jaxcomm.cli." + name.replace(" ", "_").replace("-", "_"))
    parser = _Parser(  # type: ignore[no-untyped-call]  # absl's
        prog=f"jaxcomm {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog="example:\n" + textwrap.indent(textwrap.dedent(command.EXAMPLE).strip(), "  "),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        inherited_absl_flags=flags.FlagValues(),  # a user's program in this process has flags of its own
    )
    command.add_arguments(parser)
    try:
        args = parser.parse_args(words[len(name.split()) :])
    except flags.Error as error:  # of a --flagfile
        raise JaxcommError(f"{error}.\n  Cure: check that file.") from None
    except SystemExit as stop:  # --help, and bad usage
        return stop.code if isinstance(stop.code, int) else BAD_USAGE
    code: int = command.run(args)
    return code


class _Parser(argparse_flags.ArgumentParser):
    """One whose errors are a line, not the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"error: {message}\n  Cure: see `{self.prog} --help`.\n")


def _overview() -> str:
    lines = [
        "jaxcomm: profile → plan → program → run; collectives for JAX that are planned from measurements",
        "",
        "usage: jaxcomm COMMAND [options]     jaxcomm COMMAND --help     jaxcomm --version",
        "",
        *(f"  {name:<20}{summary}" for name, summary in COMMANDS.items()),
        "",
        "start here: jaxcomm demo",
    ]
    return "\n".join(lines)


def _unknown(word: str) -> int:
    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean `jaxcomm {near[0]}`?" if near else f"the commands are: {', '.join(COMMANDS)}."
    print(f"error: jaxcomm has no command {word!r}; {hint}", file=sys.stderr)
    return BAD_USAGE
