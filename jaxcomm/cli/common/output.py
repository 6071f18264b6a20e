"""The JSON that commands print and write for machines; not a number and infinity are errors, as JSON has neither."""

from __future__ import annotations

import json
import os
from typing import Any

from jaxcomm import files


def print_json(document: Any) -> None:
    """Prints one JSON document."""
    print(json.dumps(document, indent=1, allow_nan=False))


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Writes one JSON document, whole or not at all.

    Raises:
      JaxcommError: the file cannot be written.
    """
    files.write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
