"""Reads profiles from disk and checks them fully. Writes profiles whole or not at all."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import FORMAT, VERSION, Profile

MAX_BYTES = 256 * 2**20
LOOKED_FOR: Final = f'"format": "{FORMAT}"'
_KIND: Final = files.Kind(
    "profile", VERSION, Profile, ProfileError, "`jaxcomm profile`, or `jaxcomm profile import FILE`"
)


def load(path: str | os.PathLike[str]) -> Profile:
    """The profile in a profile.json.

    Args:
      path: the file, at most 256 MiB.

    Returns:
      The profile, every value checked.

    Raises:
      ProfileError: the file cannot be read, is not a profile, has a later version, or holds an invalid value.
    """
    return decode(read_bytes(path), os.fspath(path))


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes profile.json whole or not at all: writes a temporary file in the same folder, then renames it.

    Args:
      profile: the profile.
      path: the file to make or replace.

    Raises:
      ProfileError: the file cannot be written.
    """
    files.write(path, json.dumps(profile.model_dump(), indent=1, allow_nan=False) + "\n", ProfileError)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes, at most `MAX_BYTES` of them.

    Raises:
      ProfileError: the file cannot be read, is empty, or has more than `MAX_BYTES` bytes.
    """
    data = files.read(path, MAX_BYTES, ProfileError)
    if not data:
        raise ProfileError(files.mistake(path, "is empty", "measure again; the writer may have been stopped"))
    return data


def is_profile(data: bytes) -> bool:
    """Whether the bytes look like a profile.json, of any version and even if broken."""
    return data.lstrip()[:1] == b"{" and FORMAT.encode() in data


def decode(data: bytes, where: str) -> Profile:
    """The profile in the bytes of a profile.json; `where` is the file's name in error texts.

    Raises:
      ProfileError: see `load`.
    """
    return validate(_KIND.parse(data, where), where)


def validate(document: Any, where: str) -> Profile:
    """The profile in a JSON document; the text of an error names the place of the mistake.

    Args:
      document: the decoded JSON.
      where: the name of the document's source in error texts, usually a file name.

    Returns:
      The profile.

    Raises:
      ProfileError: the document is not a profile, has a later version, or holds an invalid value. The error text has
        the JSON path and the cure.
    """
    return _KIND.validate(document, where)
