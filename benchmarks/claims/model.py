"""The file of claims: read, checked, and its `last` lines rewritten."""

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
Need = Literal["root", "gloo", "mpi", "equinox", "gpu"]
Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Words = Annotated[str, Field(min_length=1)]


class ClaimError(JaxcommError):
    """A mistake in the file of claims, or a command that did not give what its claim compares."""


class Last(files.Value):
    """The last figures of a claim; without a commit a page had them before the file existed, and no run has them."""

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
      claim: the measured thing in words.
      pages: where it stands; the last one explains it, with its heading.
      group: by which `make claims` selects.
      commands: of bash, in this order. `$OUT` is a folder for their files. Each command runs once in a rerun, also if
        several claims have it. The last one writes `$TIMES`, if the claim compares times.
      turns: commands that run after these by turns, A B A B, `launches` times each; each writes `$TIMES`.
      launches: how often the last command, or the turns, run.
      row: fields of the row of `$TIMES` that counts.
      ours: whose times in that row are ours; none: the claim is that the commands succeed.
      peer: whose times they are compared with; none: the claim is about seconds.
      peer_name: of the peer, in tables.
      at_most: the bound of ours / peer, or of seconds.
      needs: what a machine must have.
      quick: whether `--quick` runs it.
      seconds: that its commands take.
      last: its last figures.
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
        """The commands before these."""
        return self.commands if self.turns else self.commands[:-1]


class Table(files.Value):
    """A table whose cells name claims, as `texts.py` says."""

    head: list[str]
    rows: list[list[str]]


class Quote(files.Value):
    """A sentence of a page that names claims likewise."""

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
      ClaimError: not TOML, or not as the classes above have it.
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
    """The file's text with new `last` lines, which follow `seconds`, for these claims; all else stays as it is."""
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
    """The claims of these groups and ids; without names all.

    Raises:
      ClaimError: a name is neither.
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
