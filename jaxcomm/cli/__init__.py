"""The `jaxcomm` command line: runs the command, and turns failures into exit codes.

A command is a module of this folder with `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. The module is
imported only when its command runs, so that `jaxcomm --help` is quick and `jaxcomm plan` needs no JAX. Commands may
import any part of jaxcomm; no other part imports this folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TextIO, cast

from jaxcomm.cli.exit_codes import FAILED, INTERRUPTED, OK, VERSION, CommandError
from jaxcomm.errors import JaxcommError, missing_extra
from jaxcomm.log import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `jaxcomm`. If None, the command uses this process's arguments, and Ctrl-C ends the process
        at once.

    Returns:
      0 on success, 1 when the input or a check failed, 2 on bad usage. Errors go to standard error: as `error: …`, or
      with `--json` as one line of JSON.
    """
    words = [*(sys.argv[1:] if argv is None else argv)]
    errors = _Errors("--json" in words)
    if argv is None:
        _end_on_interrupt(errors)
        _open_streams()
    try:
        from jaxcomm.cli import dispatch
        from jaxcomm.cli.common import progress
        from jaxcomm.cli.common.output import Printable

        with contextlib.redirect_stdout(cast(TextIO, Printable(sys.stdout))):
            code = OK
            if call := dispatch.parse(words):
                errors.as_json = call.as_json
                with progress.lines(not call.as_json):
                    code = call.run(call.arguments)
        sys.stdout.flush()
        return code
    except CommandError as error:
        return errors.show(str(error), error.exit_code, "CommandError")
    except JaxcommError as error:
        return errors.show(str(error), kind=type(error).__name__)
    except OSError as error:
        if error.filename is not None:
            return errors.show(f"{error.filename}: {error.strerror}.\n  Cure: check the path.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python's flush at exit fails, too
        if isinstance(error, BrokenPipeError):  # the pipe's reader, such as `head`, closed the pipe
            return OK
        return errors.show(f"the output cannot be written: {error.strerror}.\n  Cure: print to another place.")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "jaxcomm":
            raise
        return errors.show(missing_extra(package, "this command"))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        return errors.show("there is not enough memory for this.\n  Cure: smaller sizes, or fewer ranks")


class _Errors:
    """Shows errors on standard error, in words or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, message: str, exit_code: int = FAILED, kind: str = "JaxcommError") -> int:
        """Shows an error, and returns its exit code."""
        print(self.text(message, exit_code, kind), file=sys.stderr)
        return exit_code

    def text(self, message: str, exit_code: int, kind: str = "JaxcommError") -> str:
        """The error and its cure in words, or as one line of JSON."""
        if not self.as_json:
            return f"error: {printable(message, keep=chr(10))}"
        error, _, cure = message.partition("\n  Cure: ")
        document = {"kind": "error", "version": VERSION, "error": kind, "message": error, "cure": cure or None}
        return json.dumps(document | {"exit_code": exit_code})


def _end_on_interrupt(errors: _Errors) -> None:
    """Makes SIGINT end the process at once with one line, even during imports or compiled code."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # background jobs ignore SIGINT
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGINT]):
            pass
        os.write(2, f"{errors.text('interrupted', INTERRUPTED)}\n".encode())
        os._exit(INTERRUPTED)

    threading.Thread(target=wait, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: None)  # no KeyboardInterrupt: imports may turn it into other errors


def _open_streams() -> None:
    """Opens closed output streams on /dev/null, and prints characters that the encoding lacks as `?`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # stays open
        getattr(sys, name).reconfigure(errors="replace")
