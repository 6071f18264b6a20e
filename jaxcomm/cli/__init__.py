"""The `jaxcomm` command line: runs the command, turns failures into exit codes.

A command is a module of this folder with `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. It is imported only
when it is asked for, so that `jaxcomm --help` is quick and `jaxcomm plan` needs no JAX. Anything may be imported here;
nothing of jaxcomm imports this folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TextIO, cast

from jaxcomm.cli.exit_codes import FAILED, INTERRUPTED, OK
from jaxcomm.errors import JaxcommError, missing_extra
from jaxcomm.log import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `jaxcomm`; None takes them from the process, which an interrupt (Ctrl-C) then ends.

    Returns:
      0 on success, 1 when the input or a check failed (`error: …` on stderr), 2 on bad usage.
    """
    if argv is None:
        _end_on_interrupt()
        _open_streams()
    try:
        from jaxcomm.cli import dispatch
        from jaxcomm.cli.common.output import Printable

        with contextlib.redirect_stdout(cast(TextIO, Printable(sys.stdout))):
            code = dispatch.dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except JaxcommError as error:
        return _fail(str(error))
    except OSError as error:
        if error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror}.\n  Cure: check the path.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more when it ends
        if isinstance(error, BrokenPipeError):  # the reader of a pipe, such as `head`, has seen enough
            return OK
        return _fail(f"what is printed cannot be written: {error.strerror}.\n  Cure: print to another place.")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "jaxcomm":
            raise
        return _fail(missing_extra(package, "this command"))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        return _fail("there is not enough memory for this.\n  Cure: smaller sizes, or fewer ranks")


def _end_on_interrupt() -> None:
    """Has SIGINT end the process with one line, at once: also while it imports, or waits for compiled code."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGINT]):
            pass
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    threading.Thread(target=wait, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: None)  # no KeyboardInterrupt, which imports may turn into other errors


def _open_streams() -> None:
    """Has this process print to nowhere where its output was closed, and what a terminal lacks letters for as `?`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # to the end
        getattr(sys, name).reconfigure(errors="replace")


def _fail(message: str) -> int:
    print("error:", printable(message, keep="\n"), file=sys.stderr)
    return FAILED
