"""`jaxcomm top`: watches this user's jobs on this host, or on several hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
import termios
import tty
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jaxcomm.cli.common import arguments, options, output
from jaxcomm.cli.common.signals import interruptible
from jaxcomm.cli.exit_codes import OK
from jaxcomm.errors import JaxcommError, load_extra, require_extras
from jaxcomm.report.job import numbers, screen
from jaxcomm.report.job.numbers import RunningJob
from jaxcomm.watch.hosts import HostsReader
from jaxcomm.watch.reader import Snapshot

EXAMPLE = """
    jaxcomm top                        # the job that started last; q ends the view
    jaxcomm top --hosts node2,node3    # their processes, too
    jaxcomm top --once                 # all jobs, once; also if the output is no terminal
    jaxcomm top --json                 # all jobs, once, for a program
"""

_QUIT: Final = (b"q", b"Q", b"")  # b"": the terminal was closed


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("job", nargs="?", help="a job's name as shown, or the PID of one of its processes")
    parser.add_argument(
        "--interval",
        type=arguments.number(0.1, 3600),
        default=1.0,
        metavar="S",
        help="seconds between two readings (1)",
    )
    parser.add_argument(
        "--hosts",
        type=arguments.words,
        default=[],
        metavar="HOST,…",
        help="also the processes on these hosts, through ssh without a password",
    )
    parser.add_argument("--once", action="store_true", help="print the present state and end")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Shows the jobs until the shown job ends or the user quits."""
    if not args.json:
        require_extras("jaxcomm top", "rich")
    with contextlib.closing(HostsReader(args.hosts)) as reader:
        return _show(args, reader)


def _show(args: Namespace, reader: HostsReader) -> int:
    snapshots = reader.read()
    found = _jobs(args.job, snapshots, [])
    if not found:
        raise _nothing(args, snapshots)
    if args.json:
        output.print_json("top", {"jobs": [dataclasses.asdict(each) for each in found]})
        return OK
    console = load_extra("rich.console", "jaxcomm top").Console(file=output.of_programs())
    if args.once or not (console.is_terminal and sys.stdin.isatty()):
        for each in found:
            console.print(screen.screen(each, console.width, None), end="\n" * (each != found[-1]))
        return OK
    name = found[0].name
    ended = _watch(console, reader, name, snapshots, args.interval)
    if ended is not None:
        print(f"The job {name} has ended after {ended:.0f} s.")
    return OK


def _watch(console: Any, reader: HostsReader, name: str, snapshots: list[Snapshot], interval: float) -> float | None:
    """Shows the job on the whole screen. Returns its last known run time in seconds, or None if the user quits."""
    live = load_extra("rich.live", "jaxcomm top").Live(console=console, screen=True, auto_refresh=False)
    before: list[Snapshot] = []
    running_s = 0.0
    with interruptible(), contextlib.suppress(KeyboardInterrupt), _keys(), live:
        while True:
            present = _jobs(None, snapshots, before)
            job = next((each for each in present if each.name == name), None)
            if job is None:
                return running_s
            running_s = job.running_s
            live.update(_page(job, present, console), refresh=True)
            if select.select([sys.stdin], [], [], interval)[0] and os.read(sys.stdin.fileno(), 1) in _QUIT:
                return None
            before, snapshots = snapshots, reader.read()
    return None


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Makes typed keys readable without Enter, and does not echo them."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _page(job: RunningJob, present: Sequence[RunningJob], console: Any) -> Any:
    others = [f"jaxcomm top {each.name}" for each in present if each is not job]
    foot = "q ends" + (f"; other jobs: {', '.join(others)}" if others else "")
    text = load_extra("rich.text", "jaxcomm top").Text(foot, "dim", no_wrap=True, overflow="ellipsis")
    layout = load_extra("rich.layout", "jaxcomm top").Layout
    page = layout()
    page.split_column(layout(screen.screen(job, console.width, console.height - 1)), layout(text, size=1))
    return page


def _jobs(wanted: str | None, snapshots: Sequence[Snapshot], before: Sequence[Snapshot]) -> list[RunningJob]:
    found = numbers.jobs(snapshots, before)
    if wanted is None:
        return found
    return [job for job in found if wanted in (job.name, *(str(each.pid) for each in job.processes))]


def _nothing(args: Namespace, snapshots: Sequence[Snapshot]) -> JaxcommError:
    where = " or ".join([os.uname().nodename, *args.hosts])
    if args.job is not None and snapshots:
        names = ", ".join(job.name for job in _jobs(None, snapshots, []))
        return JaxcommError(f"no job {args.job} of yours runs on {where}.\n  Cure: one of these: {names}.")
    return JaxcommError(
        f"no job of yours runs on {where}, or none has reached its first collective.\n"
        "  Cure: start one, for example by `jaxcomm launch -n 4 train.py`; for other hosts: jaxcomm top --hosts HOST"
    )
