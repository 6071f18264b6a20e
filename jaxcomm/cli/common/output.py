"""What commands print: text for people, and JSON for machines.

Not a number and infinity are errors in JSON, which has neither.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from jaxcomm import files
from jaxcomm.log import printable


class Printable:
    """Standard output on which control characters of names appear as their escapes; ends of lines and tabs stay."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes it, and returns its length."""
        self.stream.write(printable(text, keep="\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def of_programs() -> TextIO:
    """Standard output for lines of other programs, whose colours and bars are theirs."""
    stream: Any = sys.stdout
    return stream.stream if isinstance(stream, Printable) else stream


def print_json(document: Any) -> None:
    """Prints one JSON document."""
    print(json.dumps(document, indent=1, allow_nan=False))


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Writes one JSON document, whole or not at all.

    Raises:
      JaxcommError: the file cannot be written.
    """
    files.write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
