"""The `jaxcomm` command line: finds the command, parses its arguments, turns failures into exit codes.

A command is a module of this folder with `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. It is imported only
when it is asked for, so that `jaxcomm --help` is quick and `jaxcomm plan` needs no JAX. Anything may be imported here;
nothing of jaxcomm imports this folder.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import textwrap
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import metadata

from absl import flags
from absl.flags import argparse_flags

from jaxcomm.errors import JaxcommError

COMMANDS = {
    "demo": "the whole story on this machine in under three minutes: profile, plan, verify, train, report",
    "profile": "measure this machine's host devices: link cost and who is late",
    "profile import": "turn a foreign log or trace into a profile; its format is found by itself",
    "profile step": "measure when in your training step each gradient is there, for the plan's buckets",
    "profile loss-bound": "measure how much loss of gradients a training bears in the same rounds",
    "plan": "choose an allreduce schedule per byte range from a profile",
    "verify": "prove that plan files, or the built-in schedules, compute the sum",
    "explain": "say what a plan does, why, what it was compared with, and when it would not help",
    "export": "write a plan's schedules as files of MSCCL++ or MSCCL",
    "simulate": "predict the time of every schedule over sizes, delays and ranks",
    "what-if": "predict what a change would do to a profile: no straggler, slower links, another late rank",
    "bench": "measure jaxcomm.psum beside lax.psum on this machine's host devices",
    "check": "show on this machine what works on its GPUs, and turn that on; --cpu checks the CPU core",
}

OK, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `jaxcomm`; None takes them from the process.

    Returns:
      0 on success, 1 when the input or a check failed (`error: …` on stderr), 2 on bad usage.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except SystemExit as stop:  # argparse's --help and usage errors
        return stop.code if isinstance(stop.code, int) else FAILED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (JaxcommError, OSError) as error:
        return _fail(str(error))
    except metadata.PackageNotFoundError:
        return _fail("jaxcomm is not installed here, so its version is unknown.\n  Cure: pip install .")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "jaxcomm":
            raise
        return _fail(f"this command needs the package {error.name!r}.\n  Cure: pip install 'jaxcomm[demo]'")
    except KeyboardInterrupt:
        return _fail("interrupted")


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return OK
    if words[0] == "--version":
        print(f"jaxcomm {metadata.version('jaxcomm')}")
        return OK
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
    if name is None:
        return _unknown(words[0])
    command = importlib.import_module("jaxcomm.cli." + name.replace(" ", "_").replace("-", "_"))
    parser = argparse_flags.ArgumentParser(
        prog=f"jaxcomm {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog="example:\n" + textwrap.indent(textwrap.dedent(command.EXAMPLE).strip(), "  "),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        inherited_absl_flags=flags.FlagValues(),  # a user's program in this process has flags of its own
    )
    command.add_arguments(parser)
    code: int = command.run(parser.parse_args(words[len(name.split()) :]))
    return code


def _overview() -> str:
    lines = [
        "jaxcomm: profile → plan → program → run; collectives for JAX that know who is late",
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


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return FAILED
