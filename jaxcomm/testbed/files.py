"""Testbed files: TOML, read with every check."""

from __future__ import annotations

import os
import tomllib
from typing import Final

import pydantic

from jaxcomm import files
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed.schema import Testbed

_MAX_BYTES: Final = 2**20


def load(path: str | os.PathLike[str]) -> Testbed:
    """The testbed that a TOML file describes.

    Args:
      path: the file, at most 1 MiB.

    Raises:
      JaxcommError: the file cannot be read, is not TOML, or holds a value that cannot be; with its place.
    """
    where = os.fspath(path)
    try:
        document = tomllib.loads(files.read(path, _MAX_BYTES, JaxcommError).decode())
    except (ValueError, RecursionError) as problem:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise JaxcommError(files.mistake(where, f"is not TOML: {problem}", "mend that line")) from None
    try:
        return Testbed.model_validate(document)
    except pydantic.ValidationError as problem:
        raise JaxcommError(files.mistake(where, files.explain(problem, "a testbed"), "mend the file")) from None
