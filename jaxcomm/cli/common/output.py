"""The output of commands: text for people, and JSON for machines.

Every JSON object has a `kind`, which names the object's schema in docs/reference/json, and the schema's `version`.
Infinity and NaN are errors, because JSON has neither.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from jaxcomm import files
from jaxcomm.cli.exit_codes import VERSION
from jaxcomm.log import printable


class Printable:
    """Standard output that escapes control characters, except line ends and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes the text, and returns its length."""
        self.stream.write(printable(text, keep="\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def of_programs() -> TextIO:
    """Standard output without escaping, for lines of other programs: colours and progress bars stay intact."""
    stream: Any = sys.stdout
    return stream.stream if isinstance(stream, Printable) else stream


def print_json(kind: str, fields: Mapping[str, Any]) -> None:
    """Prints one JSON object, which begins with its kind and version."""
    print(_json(kind, fields))


def write_json(path: str | os.PathLike[str], kind: str, fields: Mapping[str, Any]) -> None:
    """Writes one JSON object atomically. The object begins with its kind and version.

    Raises:
      JaxcommError: the file cannot be written.
    """
    files.write(path, _json(kind, fields) + "\n")


def _json(kind: str, fields: Mapping[str, Any]) -> str:
    return json.dumps({"kind": kind, "version": VERSION, **fields}, indent=1, allow_nan=False)
