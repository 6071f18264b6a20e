"""`jaxcomm testbed run`: makes hosts, racks and rails on this machine and runs a command on them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from jaxcomm import testbed
from jaxcomm.cli.common import arguments, options, output, progress, signals
from jaxcomm.cli.exit_codes import INTERRUPTED, OK, CommandError
from jaxcomm.distributed.launch import commands as launch
from jaxcomm.distributed.launch import supervise
from jaxcomm.environment import HOST
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import table
from jaxcomm.testbed import Layout, LinkCounters, QueueCounters, SpineCounters

EXAMPLE = """
    jaxcomm testbed run racks.toml -- python train.py --steps 100
    jaxcomm testbed run switch.toml --json -- python train.py        # also the queues and drops of the switch
    jaxcomm testbed run racks.toml --dry-run -- python train.py      # the commands of ip, tc and nft
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", help=f"the testbed, in TOML, or one of {', '.join(testbed.examples())}")
    parser.add_argument("command", nargs="+", help="after --: the command that every process of the testbed runs")
    parser.add_argument("--time-limit", type=arguments.seconds, default=600.0, metavar="S", help="seconds; default 600")
    parser.add_argument("--dry-run", action="store_true", help="print the commands that it would run, and run none")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Makes a testbed, runs the command on its hosts, and removes the testbed. Raises an error if the command fails."""
    wanted = testbed.load(args.file)
    command = testbed.on_its_host(launch.command(args.command))
    if args.dry_run:
        return _dry_run(Layout(wanted, "00000000"), command, args)
    try:
        with signals.interruptible(), contextlib.ExitStack() as stack:
            with progress.clock(f"making {args.file}"):
                layout = stack.enter_context(testbed.up(wanted))
            try:
                return _run(layout, command, args)
            finally:
                signals.ignore()  # a second signal must not interrupt the removal of the testbed
    except KeyboardInterrupt:
        raise CommandError("interrupted", INTERRUPTED) from None


def _run(layout: Layout, command: Sequence[str], args: Namespace) -> int:
    out, programs = (sys.stderr, sys.stderr) if args.json else (sys.stdout, output.of_programs())
    own = _environments(layout)
    kept = launch.inherited(os.environ)
    width = len(str(len(own) - 1))
    print(testbed.picture(layout), file=out, flush=True)

    def show(process: int, line: str, is_error: bool) -> None:
        host = own[process][HOST]
        print(f"[{process:>{width}} {host}] {line}", file=sys.stderr if is_error else programs, flush=True)

    expired = threading.Event()

    def expire() -> None:
        expired.set()
        os.kill(os.getpid(), signal.SIGTERM)  # `supervise` then ends the processes

    timer = threading.Timer(args.time_limit, expire)
    timer.start()
    try:
        with testbed.happening(layout):
            failure = supervise.supervise(command, {process: kept | each for process, each in enumerate(own)}, show)
    finally:
        timer.cancel()
    links, queues, spines = testbed.counters(layout), testbed.queue_counters(layout), testbed.spine_counters(layout)
    if args.json:
        counted = {
            "links": [link._asdict() for link in links],
            "queues": [queue._asdict() for queue in queues],
            "spines": [spine._asdict() for spine in spines],
        }
        output.print_json("testbed-run", {"testbed": _document(layout), **counted})
    else:
        print(_links(links), flush=True)
        if queues:
            print(_queues(queues), flush=True)
        if spines:
            print(_spines(spines), flush=True)
    if expired.is_set():
        raise JaxcommError(
            f"the processes have not ended after {args.time_limit:g} s, so they were terminated.\n"
            "  Cure: set a longer --time-limit, or find the call that they wait in."
        )
    if failure is None:
        return OK
    if failure.process is None:
        raise KeyboardInterrupt
    status, host = failure.status, own[failure.process][HOST]
    how = f"ended with exit status {status}" if status > 0 else f"was ended by signal {-status}"
    raise CommandError(
        f"process {failure.process} on {host} {how}; so the others were ended.", status if status > 0 else 128 - status
    )


def _environments(layout: Layout) -> list[dict[str, str]]:
    own = testbed.environments(layout)
    return [
        launch.variables(
            process,
            len(own),
            devices=1,
            coordinator=testbed.coordinator(layout),
            environment=os.environ,
        )
        | each
        for process, each in enumerate(own)
    ]


def _links(links: Sequence[LinkCounters]) -> str:
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
    return table(head, rows)


def _queues(queues: Sequence[QueueCounters]) -> str:
    head = [
        "host",
        "rail",
        "priority",
        "packets",
        "MB",
        "dropped: ordinary",
        "important",
        "mean ms",
        "p99 ms",
        "max ms",
    ]
    rows = [
        [
            queue.host,
            queue.rail,
            str(queue.priority),
            str(queue.packets),
            f"{queue.bytes / 1e6:.1f}",
            str(queue.ordinary_drops),
            str(queue.important_drops),
            *(f"{1e3 * seconds:.3f}" for seconds in (queue.mean_s, queue.p99_s, queue.max_s)),
        ]
        for queue in queues
    ]
    return "packets that waited in the switch, by destination:\n" + table(head, rows)


def _spines(spines: Sequence[SpineCounters]) -> str:
    head = ["spine", "packets", "MB", "dropped by queues", "lost"]
    rows = [
        [each.spine, str(each.packets), f"{each.bytes / 1e6:.1f}", str(each.drops), str(each.random_losses)]
        for each in spines
    ]
    return "packets that crossed a spine:\n" + table(head, rows)


def _dry_run(layout: Layout, command: Sequence[str], args: Namespace) -> int:
    build = [shlex.join(each) for each in testbed.build(layout)]
    for path, text in testbed.contents(layout).items():
        build.append(shlex.join(("printf", "%s\\n", *text.splitlines())) + f" > {path}")
    build += [shlex.join(testbed.first_process(layout, host.name)) for host in layout.testbed.hosts]
    own, events = _environments(layout), testbed.timeline(layout)
    if args.json:
        output.print_json(
            "testbed-dry-run",
            {
                "testbed": _document(layout),
                "build": build,
                "processes": [{"command": command, "environment": each} for each in own],
                "events": [event._asdict() for event in events],
            },
        )
        return OK
    print(testbed.picture(layout))
    print("\n".join(build))
    for each in own:
        print(*(f"{name}={shlex.quote(value)}" for name, value in each.items()), shlex.join(command))
    for event in events:
        print(f"{shlex.join(event.command)}  # after {event.at_s:g} s: {event.text}".strip())
    return OK


def _document(layout: Layout) -> dict[str, Any]:
    return {"id": layout.id, **layout.testbed.model_dump()}
