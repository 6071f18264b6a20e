"""Reads and checks the file of claims, and rewrites its `last` lines."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from jaxcomm import files
from jaxcomm.errors import JaxcommError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "claims.toml"
Group = Literal["hosts", "rails", "udp", "host", "process", "planner", "training"]
Need = Literal["root", "gloo", "mpi", "mpiwrapper", "equinox", "gpu"]
Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Words = Annotated[str, Field(min_length=1)]


class ClaimError(JaxcommError):
    """A mistake in the file of claims, or a command that failed or lacks the times that its claim compares."""


class Last(files.Value):
    """The last figures of a claim. Without a commit, a page had them before the file existed, and no rerun has yet."""

    date: datetime.date
    commit: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    ours: float | None = None
    peer: float | None = None


class Claim(files.Value):
    """One claim.

    Attributes:
      claim: the measured quantity, in words.
      pages: the pages that quote the claim. The last one explains it, and is given as PAGE#HEADING.
      group: the group by which `make claims` can select the claim.
      commands: bash commands, run in this order; `$OUT` is a folder for their files. Commands that several claims share
        run once in a rerun. If the claim compares times and has no `turns`, the last command writes them to `$TIMES`.
      turns: commands that run after `commands`, alternating A B A B, `launches` times each; each writes `$TIMES`.
      launches: number of runs of the last command, or of each of `turns`.
      row: fields that identify the row of `$TIMES`.
      ours: the name of our times in that row; None: the claim is that the commands succeed.
      peer: the name of the times that ours are compared with; None: the claim is about seconds.
      peer_name: the peer's name in tables.
      at_most: the upper bound of ours / peer, or of our seconds.
      needs: the requirements of the machine.
      quick: whether `--quick` runs the claim.
      seconds: duration of the commands.
      last: the last figures.
    """

    claim: Words
    pages: Annotated[list[Words], Field(min_length=1)]
    group: Group
    commands: list[Words] = []
    turns: list[Words] = []
    launches: Annotated[int, Field(ge=1)] = 1
    row: dict[str, str | int | float] = {}
    ours: Words | None = None
    peer: Words | None = None
    peer_name: Words | None = None
    at_most: Annotated[float, Field(gt=0)] | None = None
    needs: list[Need] = []
    quick: bool = False
    seconds: Annotated[int, Field(ge=1)]
    last: Last | None = None

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> Claim:
        if not self.commands and not self.turns:
            raise ValueError("it has no command")
        if (self.ours is None) != (self.at_most is None):
            raise ValueError("times need `ours` and `at_most`, both or neither")
        if self.peer and not self.ours:
            raise ValueError("`peer` needs `ours`")
        if self.peer and not self.peer_name:
            raise ValueError("`peer` needs `peer_name`")
        if self.ours and not any("$TIMES" in command for command in self.measuring):
            raise ValueError("no measuring command writes $TIMES")
        return self

    @property
    def measuring(self) -> list[str]:
        """The commands whose times count."""
        return self.turns or self.commands[-1:]

    @property
    def preparing(self) -> list[str]:
        """The commands that run before the measuring ones."""
        return self.commands if self.turns else self.commands[:-1]


class Table(files.Value):
    """A table whose cells have placeholders for claims' figures; see `texts.py`."""

    head: list[str]
    rows: list[list[str]]


class Quote(files.Value):
    """A sentence of a page with the same placeholders."""

    page: Words
    text: Words


class Document(files.Value):
    """The whole file."""

    claims: dict[Id, Claim]
    tables: dict[str, Table] = {}
    quotes: list[Quote] = []


def load(path: Path = FILE) -> Document:
    """The file's claims.

    Raises:
      ClaimError: the file is not TOML, or does not fit the classes above.
    """
    try:
        return Document.model_validate(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as problem:
        raise ClaimError(f"{path}: {problem}.\n  Cure: mend the file.") from None
    except pydantic.ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ClaimError(f"{path}: {place}: {first['msg']}.\n  Cure: mend the file.") from None


def with_last(text: str, found: Mapping[str, Last]) -> str:
    """The file's text with new `last` lines for these claims, each after the line `seconds`; the rest is unchanged."""
    for id, last in found.items():
        head = re.search(rf"^\[claims\.{re.escape(id)}\]$", text, re.MULTILINE)
        if head is None:
            raise ClaimError(f"the claim {id} has no line [claims.{id}].\n  Cure: begin its table with this line.")
        lines = text[head.end() :].split("\n")
        seconds = next(number for number, line in enumerate(lines) if line.startswith("seconds = "))
        old = slice(seconds + 1, seconds + 1 + lines[seconds + 1].startswith("last = "))
        lines[old] = [_line(last)]
        text = text[: head.end()] + "\n".join(lines)
    return text


def _line(last: Last) -> str:
    values = last.model_dump(exclude_none=True)
    return f"last = {{{', '.join(f'{name} = {_value(value)}' for name, value in values.items())}}}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 9999 else str(round(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def selected(document: Document, names: Sequence[str], *, quick: bool) -> dict[str, Claim]:
    """The claims with these groups or ids; without names, all claims.

    Raises:
      ClaimError: a name is neither a group nor an id.
    """
    groups = {claim.group for claim in document.claims.values()}
    for name in names:
        if name not in groups and name not in document.claims:
            raise ClaimError(
                f"{name!r} is neither a group nor the id of a claim.\n"
                f"  Cure: name one of the groups {', '.join(sorted(groups))}, or an id that --list shows."
            )
    return {
        id: claim
        for id, claim in document.claims.items()
        if (not names or claim.group in names or id in names) and (claim.quick or not quick)
    }
