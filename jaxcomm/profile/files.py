"""Profiles on disk: read with every check, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import FORMAT, Profile, validate

MAX_BYTES = 256 * 2**20
LOOKED_FOR = f'"format": "{FORMAT}"'


def load(path: str | os.PathLike[str]) -> Profile:
    """The profile in a profile.json.

    Args:
      path: the file, at most 256 MiB.

    Returns:
      The profile, every value checked.

    Raises:
      ProfileError: the file cannot be read, is no profile, is of a later version, or holds a value that cannot be.
    """
    return decode(read_bytes(path), os.fspath(path))


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes profile.json whole or not at all: under a temporary name in the same folder, then renamed.

    Args:
      profile: the profile.
      path: the file to make or replace.

    Raises:
      ProfileError: the file cannot be written.
    """
    target = Path(path)
    text = json.dumps(profile.model_dump(), indent=1, allow_nan=False) + "\n"
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ProfileError(f"{target}: cannot be written: {error.strerror}.\n  Cure: choose another place.") from None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes, at most `MAX_BYTES` of them.

    Raises:
      ProfileError: the file cannot be read, is empty, or is larger than that.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"{os.fspath(path)}: cannot be read: {error.strerror}.\n  Cure: check the path.") from None
    if not data:
        raise ProfileError(f"{os.fspath(path)}: is empty.\n  Cure: measure again; the writer may have been stopped.")
    if len(data) > MAX_BYTES:
        raise ProfileError(
            f"{os.fspath(path)}: is larger than {MAX_BYTES >> 20} MiB.\n  Cure: measure fewer steps, or cut the file."
        )
    return data


def is_profile(data: bytes) -> bool:
    """Whether the bytes look like a profile.json, of whatever version and however broken."""
    return data.lstrip()[:1] == b"{" and FORMAT.encode() in data


def decode(data: bytes, where: str) -> Profile:
    """The profile in the bytes of a profile.json; `where` names them in errors.

    Raises:
      ProfileError: see `load`.
    """
    try:
        document = json.loads(data, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ProfileError(
            f"{where}: is not JSON: {error}.\n  Cure: measure again; the file may be cut short."
        ) from None
    return validate(document, where)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} stands twice in one object")
    return fields
