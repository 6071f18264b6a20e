"""`jaxcomm testbed`: runs a command on hosts, racks and rails that are made on this machine, with what goes wrong."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

from jaxcomm import testbed
from jaxcomm.cli import BAD_USAGE, INTERRUPTED, OK, output
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import table
from jaxcomm.testbed import Layout, Testbed

EXAMPLE = """
    jaxcomm testbed check racks.toml
    jaxcomm testbed run racks.toml -- python train.py --steps 100
    jaxcomm testbed run racks.toml --dry-run -- python train.py      # the commands of ip, tc and nft
    jaxcomm testbed clean
"""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "action",
        choices=("run", "check", "clean"),
        help="run: the command once per process of the file; check: whether this machine can carry the testbed, or "
        "any; clean: remove what is left of testbeds whose `jaxcomm testbed run` was killed",
    )
    parser.add_argument("file", nargs="?", help="the testbed, in TOML")
    parser.add_argument("command", nargs="*", help="after --: what each process runs")
    parser.add_argument("--time-limit", type=_seconds, default=600.0, metavar="S", help="seconds; default 600")
    parser.add_argument("--dry-run", action="store_true", help="print the commands that it would run, and run none")
    parser.add_argument("--json", action="store_true", help="print JSON; the processes' output goes to standard error")


def run(args: Namespace) -> int:
    """Runs a command on a testbed, checks the machine, or cleans it."""
    if args.action == "clean":
        return _clean(args)
    if args.action == "check":
        return _check(args)
    if args.file is None or not args.command:
        print(
            f"error: testbed run needs {'a file' if args.file is None else 'a command'}.\n"
            "  Cure: jaxcomm testbed run racks.toml -- python train.py",
            file=sys.stderr,
        )
        return BAD_USAGE
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
    build = [shlex.join(command) for command in testbed.build(layout)]
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


def _check(args: Namespace) -> int:
    found = testbed.requirements(testbed.load(args.file) if args.file else None)
    lacking = [each for each in found if each.cure]
    if args.json:
        output.print_json({each.name: {"there": not each.cure, "cure": each.cure} for each in found})
    else:
        print("\n".join(f"{'missing' if each.cure else 'there'}: {each.name}" for each in found))
    if lacking:
        cures = "; ".join(each.cure for each in lacking)
        raise JaxcommError(f"a testbed needs {', '.join(each.name for each in lacking)}.\n  Cure: {cures}.")
    return OK


def _clean(args: Namespace) -> int:
    removed = testbed.clean()
    used = testbed.in_use()
    if args.json:
        output.print_json({"removed": removed, "in_use": used})
        return OK
    print(f"removed: {', '.join(removed) or 'nothing was left'}")
    for id, process in used.items():
        print(f"in use: {id}, by process {process}")
    return OK


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
    from argparse import ArgumentTypeError

    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 86_400:
        raise ArgumentTypeError(f"{text!r} is not a time; write seconds above 0, at most 86400")
    return found
