"""Options that several commands share. Each option has the same name, type and text in all commands."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Final, get_args

from jaxcomm import simulate
from jaxcomm.cli.common import arguments
from jaxcomm.cli.common.arguments import Late
from jaxcomm.schedules.schedule import CollectiveKind

_MOST_PORTS: Final = 4096


def as_json(parser: ArgumentParser) -> None:
    """`--json`, of every command that prints a result."""
    parser.add_argument("--json", action="store_true", help="print one JSON object; errors are JSON, too")


def sizes(parser: ArgumentParser, default: str, of: str) -> None:
    """`--sizes`, the sizes of several calls. `of` says which buffer has these sizes."""
    parser.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=arguments.sizes(default),
        metavar="A,B..C",
        help=f"{of}; B..C in steps of 4x ({default})",
    )


def collective(parser: ArgumentParser, meaning: str) -> None:
    """`--collective`, a kind of collective."""
    kinds = get_args(CollectiveKind)
    parser.add_argument("--collective", choices=kinds, default="all_reduce", help=f"{meaning} (all_reduce)")


def size(parser: ArgumentParser, of: str) -> None:
    """`--size`, the size of one call."""
    parser.add_argument("--size", type=arguments.size, metavar="SIZE", help=of)


def late(parser: ArgumentParser, default: Late | None, meaning: str) -> None:
    """`--late`, one late rank."""
    parser.add_argument("--late", type=arguments.late, default=default, metavar="rank=R,ms=T", help=meaning)


def late_ranks(parser: ArgumentParser, meaning: str) -> None:
    """`--late`, any number of late ranks."""
    repeated(parser, "--late", arguments.late, "rank=R,ms=T", meaning)


def repeated(parser: ArgumentParser, name: str, type: Callable[[str], Any], metavar: str, meaning: str) -> None:
    """An option that may be given several times."""
    help = f"{meaning}; may be given several times"
    parser.add_argument(name, type=type, action="append", default=[], metavar=metavar, help=help)


def ports(parser: ArgumentParser) -> None:
    """`--ports`, the number of peers with which a rank exchanges messages at once."""
    help = f"peers that a rank exchanges with at once ({simulate.PORTS})"
    parser.add_argument("--ports", type=arguments.whole(1, _MOST_PORTS), default=simulate.PORTS, metavar="N", help=help)


def considered(parser: ArgumentParser) -> None:
    """`--explain-json`, of commands that make or read a plan."""
    help = "also write every alternative, with its verdict, as JSON"
    parser.add_argument("--explain-json", metavar="FILE", help=help)


def model_bytes(parser: ArgumentParser, default: str) -> None:
    """`--model-bytes`, the size of the model that groups average."""
    help = f"bytes that groups average ({default})"
    parser.add_argument("--model-bytes", type=arguments.size, metavar="SIZE", help=help)
