"""The folder of the sockets at which this user's processes on this host answer."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from jaxcomm.errors import JaxcommError

VERSION: Final = 1  # version of the snapshots that processes send; `jaxcomm top` ignores processes with another version


def folder() -> Path:
    """Returns the folder, and makes it if it is missing.

    No environment variable changes its path, because a job and a later login may have different environments.

    Raises:
      JaxcommError: the folder cannot be made, belongs to another user, or lets other users in.
    """
    return private(Path(f"/tmp/jaxcomm-{os.getuid()}"))


def private(path: Path) -> Path:
    """Makes a folder that only this user may enter, or checks an existing folder. Returns its path.

    Raises:
      JaxcommError: as for `folder`.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise JaxcommError(
            f"{path} cannot be made: {error.strerror}.\n  Cure: remove what is there, or make its folder writable."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise JaxcommError(
            f"{path} is not a folder that only its user, number {os.getuid()}, may enter.\n  Cure: remove {path}."
        )
    return path
