"""`jaxcomm testbed run`: runs a command on hosts, racks and rails that are made on this machine for it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from typing import Any, Final

from jaxcomm import testbed
from jaxcomm.cli import INTERRUPTED, OK, output
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import table
from jaxcomm.testbed import Layout, Testbed

EXAMPLE = """
    jaxcomm testbed run racks.toml -- python train.py --steps 100
    jaxcomm testbed run racks.toml --dry-run -- python train.py      # the commands of ip, tc and nft
"""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_S: Final = 86_400


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", help="the testbed, in TOML")
    parser.add_argument("command", nargs="+", help="after --: what every process of the testbed runs")
    parser.add_argument("--time-limit", type=_seconds, default=600.0, metavar="S", help="seconds; default 600")
    parser.add_argument("--dry-run", action="store_true", help="print the commands that it would run, and run none")
    parser.add_argument("--json", action="store_true", help="print JSON; the processes' output goes to standard error")


def run(args: Namespace) -> int:
    """Makes the testbed, runs the command on it, and removes it."""
    wanted = testbed.load(args.file)
    if args.dry_run:
        return _dry_run(wanted, args)
    try:
        with _interruptible(), testbed.up(wanted) as layout:
            return _run(layout, args)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(layout: Layout, args: Namespace) -> int:
    out = sys.stderr if args.json else sys.stdout
    print(testbed.picture(layout), file=out, flush=True)
    problem = None
    with testbed.happening(layout):
        try:
            testbed.supervise(testbed.processes(layout, args.command), out, args.time_limit)
        except JaxcommError as error:
            problem = error
    links = testbed.counters(layout)
    if args.json:
        output.print_json({"testbed": _document(layout), "links": [link._asdict() for link in links]})
    else:
        head = ["host", "rail", "sent MB", "received MB", "dropped by queues", "lost at random"]
        rows = [
            [
                link.host,
                link.rail,
                f"{link.sent_bytes / 1e6:.1f}",
                f"{link.received_bytes / 1e6:.1f}",
                str(link.queue_drops),
                str(link.random_losses),
            ]
            for link in links
        ]
        print(table(head, rows))
    if problem:
        raise problem
    return OK


def _dry_run(wanted: Testbed, args: Namespace) -> int:
    layout = Layout(wanted, "00000000")
    lines = ["printf", "%s\\n", *testbed.hosts_text(layout).splitlines()]
    build = [f"{shlex.join(lines)} > {testbed.hosts_file(layout.id)}"]
    build += [shlex.join(command) for command in testbed.build(layout)]
    started = testbed.processes(layout, args.command)
    events = testbed.timeline(layout)
    if args.json:
        output.print_json(
            {
                "testbed": _document(layout),
                "build": build,
                "processes": [process._asdict() for process in started],
                "events": [event._asdict() for event in events],
            }
        )
        return OK
    print(testbed.picture(layout))
    print("\n".join(build))
    for process in started:
        environment = [f"{name}={value}" for name, value in process.environment.items()]
        print(shlex.join(["env", *environment, *process.command]))
    for event in events:
        print(f"{shlex.join(event.command)}  # after {event.at_s:g} s: {event.text}")
    return OK


def _document(layout: Layout) -> dict[str, Any]:
    return {"id": layout.id, **layout.testbed.model_dump()}


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Has the first signal that ends the process raise KeyboardInterrupt; others then wait until all is removed."""

    def interrupt(*_: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)  # by which the command line ends the process at once
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for each, handler in before.items():
            signal.signal(each, handler)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= _LONGEST_S:
        raise ArgumentTypeError(f"{text!r} is not a time limit; write seconds above 0, at most {_LONGEST_S}")
    return found
