"""The `jaxcomm` command line: runs the command, turns failures into exit codes.

A command is a module of this folder with `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. It is imported only
when it is asked for, so that `jaxcomm --help` is quick and `jaxcomm plan` needs no JAX. Anything may be imported here;
nothing of jaxcomm imports this folder.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from jaxcomm.errors import JaxcommError

COMMANDS = {
    "demo": "profile, plan, verify, train and report on this machine, in under three minutes",
    "profile": "measure this machine's host devices, or a job's processes: link cost and who is late",
    "profile import": "turn another tool's log or trace into a profile; its format is recognized",
    "profile step": "measure when in your training step each gradient is ready, for the plan's buckets",
    "profile loss-bound": "measure how much loss of gradients a training bears in the same rounds",
    "plan": "choose an allreduce schedule per byte range from a profile",
    "verify": "prove that plan files, or the built-in schedules, compute the sum",
    "explain": "say what a plan does, why, what it was compared with, and when it would not help",
    "explain auto": 'say what a run with plan="auto" has seen, tried and gained; write its plan',
    "report": "show a run over time: its rails, late ranks and plans, as a picture, a page, a trace, scalars",
    "export": "write a plan's schedules as files of MSCCL++ or MSCCL",
    "simulate": "predict the time of every schedule over sizes, delays and ranks",
    "what-if": "predict what a change would do to a profile: no straggler, slower links, another late rank",
    "bench": "measure jaxcomm.psum beside lax.psum, on host devices or between a job's processes",
    "launch": "start the processes of a job on this machine; when one fails, end all",
    "rails": "list the network interfaces that connect hosts, and what each of them carries",
    "testbed run": "run a command on hosts, racks and rails made on this machine, with delay, loss and cuts",
    "testbed check": "say whether this machine can carry a testbed: Linux, root, ip, tc, nft",
    "testbed clean": "remove what is left of testbeds whose `jaxcomm testbed run` was killed",
    "check": "show on this machine what works on its GPUs, and turn that on; --cpu checks the CPU core",
}

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

_PACKAGES: Final = {"sklearn": "scikit-learn"}  # those that pip calls otherwise than Python does


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
        return _fail(
            f"this command needs the package {package!r}.\n  Cure: pip install {_PACKAGES.get(package, package)}"
        )
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
    print(f"error: {message}", file=sys.stderr)
    return FAILED
