"""The table of commands. Finds the command that the command line names, and parses the command's arguments."""

from __future__ import annotations

import argparse
import difflib
import importlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jaxcomm
from jaxcomm.cli import completion
from jaxcomm.cli.exit_codes import BAD_USAGE, CommandError
from jaxcomm.errors import JaxcommError

COMMANDS = {
    "demo": "profile, plan, verify, train and report on this machine, in under three minutes",
    "profile": "measure this machine's host devices, or a job's processes: link cost and late ranks",
    "profile import": "turn another tool's log or trace into a profile; its format is recognized",
    "profile step": "measure when in your training step each gradient is ready, for the plan's buckets",
    "profile drop-bound": "measure the share of its gradients that a training can drop in the same rounds",
    "plan": "choose an allreduce schedule per byte range from a profile",
    "verify": "prove that plan files, or the built-in schedules, compute the sum",
    "explain": "say what a plan does, why, what it was compared with, and when it would not help",
    "report": "show a saved run: the plan in force, late ranks and rails, as words, a picture, a page or a trace",
    "top": "watch the jobs of yours that run on this host: late ranks, waits, transfers, rails, plans, errors",
    "export": "write a plan's schedules as files of MSCCL++ or MSCCL",
    "simulate": "predict the time of every schedule over sizes, delays and ranks",
    "simulate events": "run every schedule message by message, with shared links, queues and lost packets",
    "what-if": "predict the effect of a change of a profile: no straggler, slower links, another late rank",
    "bench": "measure jaxcomm.psum beside lax.psum, on host devices or between a job's processes",
    "launch": "start the processes of a job on this machine; when one fails, end all",
    "rails": "list the network interfaces that connect hosts, and the share that each carries",
    "testbed run": "run a command on hosts, racks and rails made on this machine, with delay, loss and cuts",
    "testbed check": "say whether this machine can carry a testbed: Linux, root, ip, tc, nft",
    "testbed clean": "remove the leftovers of testbeds whose `jaxcomm testbed run` was killed",
    "check": "check which parts work on this machine's GPUs, and turn them on; --cpu checks the CPU core",
}


class Call(NamedTuple):
    """A command and its arguments."""

    run: Callable[[argparse.Namespace], int]
    arguments: argparse.Namespace

    @property
    def as_json(self) -> bool:
        """Whether to print JSON."""
        return getattr(self.arguments, "json", False)


def parse(words: list[str]) -> Call | None:
    """Returns the command named by the words after `jaxcomm`. If the words ask for help, prints help and returns None.

    Raises:
      CommandError: no such command, or invalid arguments.
    """
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return None
    if words[0] == "--version":
        print(f"jaxcomm {jaxcomm.__version__}")
        return None
    if words[0] == "--print-completion":
        print(completion.script(words[1] if words[1:] else "", {name: _parser(name) for name in COMMANDS}))
        return None
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
    members = [each for each in COMMANDS if each.startswith(f"{words[0]} ")]
    if name is None and members and words[1:] in ([], ["-h"], ["--help"]):
        print("\n".join([f"usage: jaxcomm {words[0]} COMMAND [options]", "", *_summaries(members)]))
        return None
    if name is None:
        raise _unknown(words[0])
    try:
        return Call(_module(name).run, _parser(name).parse_args([*_with_flag_files(words[len(name.split()) :])]))
    except SystemExit:  # after --help
        return None


def _module(name: str) -> Any:
    return importlib.import_module("jaxcomm.cli." + name.replace(" ", "_").replace("-", "_"))


def _parser(name: str) -> _Parser:
    """The parser of a command's arguments."""
    command = _module(name)
    parser = _Parser(
        prog=f"jaxcomm {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog="example:\n" + textwrap.indent(textwrap.dedent(command.EXAMPLE).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def _with_flag_files(words: Sequence[str]) -> Iterator[str]:
    """Yields the words. Replaces `--flagfile=FILE` by the lines of FILE, except comments, which begin with # or //."""
    for word in words:
        option, _, path = word.partition("=")
        if option != "--flagfile":
            yield word
            continue
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise JaxcommError(f"--flagfile: {path} cannot be read: {why}.\n  Cure: check that file.") from None
        yield from (line for each in lines if (line := each.strip()) and not line.startswith(("#", "//")))


class _Parser(argparse.ArgumentParser):
    """A parser that raises errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}\n  Cure: see `{self.prog} --help`.", BAD_USAGE)


def _overview() -> str:
    lines = [
        "jaxcomm: profile → plan → program → run; collectives for JAX that are planned from measurements",
        "",
        "usage: jaxcomm COMMAND [options]     jaxcomm COMMAND --help     jaxcomm --version",
        "       jaxcomm --print-completion bash (or zsh, fish)",
        "",
        *_summaries(COMMANDS),
        "",
        "start here: jaxcomm demo",
    ]
    return "\n".join(lines)


def _summaries(names: Iterable[str]) -> list[str]:
    return [f"  {name:<20}{COMMANDS[name]}" for name in names]


def _unknown(word: str) -> CommandError:
    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean `jaxcomm {near[0]}`?" if near else f"the commands are: {', '.join(COMMANDS)}."
    return CommandError(f"jaxcomm has no command {word!r}; {hint}", BAD_USAGE)
