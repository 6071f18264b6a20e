"""`jaxcomm testbed check`: checks whether this machine can run a testbed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import testbed
from jaxcomm.cli.common import options, output
from jaxcomm.cli.exit_codes import OK
from jaxcomm.errors import JaxcommError

EXAMPLE = """
    jaxcomm testbed check
    jaxcomm testbed check racks.toml --json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", nargs="?", help="a testbed, in TOML; without it, all possible requirements are checked")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Lists the requirements; fails if a requirement is not met."""
    found = testbed.requirements(testbed.load(args.file) if args.file else None)
    if args.json:
        met = {each.name: {"met": not each.cure, "cure": each.cure} for each in found}
        output.print_json("testbed-check", {"requirements": met})
    else:
        print("\n".join(f"{each.name}: {'missing' if each.cure else 'there'}" for each in found))
    if lacking := [each for each in found if each.cure]:
        names, cures = ", ".join(each.name for each in lacking), "; ".join(each.cure for each in lacking)
        raise JaxcommError(f"a testbed needs {names}.\n  Cure: {cures}.")
    return OK
