"""What commands print and write: JSON for machines, files whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from jaxcomm.errors import JaxcommError


def print_json(document: Any) -> None:
    """Prints one JSON document; not a number and infinity are errors, as JSON has neither."""
    print(json.dumps(document, indent=1, allow_nan=False))


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Writes one JSON document, as `write` does."""
    write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Makes or replaces a file under a temporary name in its folder, then renames it.

    Raises:
      JaxcommError: the file cannot be written.
    """
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", dir=target.parent, delete=False) as file:
            try:
                file.write(data.encode() if isinstance(data, str) else data)
                os.chmod(file.name, 0o644)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise JaxcommError(f"{target}: cannot be written: {error.strerror}.\n  Cure: choose another place.") from None
