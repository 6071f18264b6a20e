"""`jaxcomm testbed clean`: removes the leftovers of testbeds whose `jaxcomm testbed run` was killed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import testbed
from jaxcomm.cli.common import options, output, progress
from jaxcomm.cli.exit_codes import OK

EXAMPLE = """
    jaxcomm testbed clean
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Removes the leftovers, and names the testbeds that are in use."""
    with progress.clock("removing leftovers"):
        removed, used = testbed.clean(), testbed.in_use()
    if args.json:
        output.print_json("testbed-clean", {"removed": removed, "in_use": used})
        return OK
    print(f"removed: {', '.join(removed) or 'nothing was left'}")
    for id, process in used.items():
        print(f"in use by process {process}: {id}")
    return OK
