"""Dumps: if JAXCOMM_DUMP names a folder, each process writes a file there about what its ranks did when a call failed.

`profile.dump_file` describes the file, and `jaxcomm report` reads the files of several processes together. The number
and the size of the files are bounded: a process writes a dump for its first failures only. If a process is started
again and again, its oldest files are replaced.
"""

from __future__ import annotations

import datetime
import json
import os
import threading
from pathlib import Path
from typing import Any, Final

from jaxcomm import ffi, files, statistics
from jaxcomm.distributed import forks
from jaxcomm.environment import DUMP, host_name
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say
from jaxcomm.profile.dump_file import FORMAT, VERSION

_MOST_OF_RUN: Final = 4  # maximum number of dumps that a process writes
_MOST_FILES: Final = 16  # maximum number of dumps of one process in the folder
_MOST_CALLS: Final = 256
_MOST_ARRIVALS: Final = 1 << 16  # maximum number of arrivals in all calls of a dump


def start(folder: str) -> None:
    """Starts a thread that writes a dump into the folder at each failure. Called once.

    Raises:
      JaxcommError: there is no such folder, and it cannot be made.
    """
    try:
        dumps = _Dumps(files.make_folder(folder))
    except JaxcommError as error:
        raise JaxcommError(f"{DUMP} is {folder!r:.200}; {error}") from None
    threading.Thread(target=dumps.follow, name="jaxcomm dumps", daemon=True).start()
    forks.run_at_exit(dumps.write_rest)
    _started.append(dumps)


def finish() -> None:
    """Writes the dumps of all failures so far. Called before a process ends without Python's exit functions."""
    for dumps in _started:
        dumps.write_rest()


_started: list[_Dumps] = []


class _Dumps:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # guards `_seen` and the writing
        self._seen = 0  # the number of failures that have a dump

    def follow(self) -> None:
        """Writes dumps as calls fail."""
        while (seen := self._seen) < _MOST_OF_RUN:
            failure = ffi.await_failure(seen, waits=True)
            with self._lock:
                if failure and self._seen == seen:
                    self._write(failure)

    def write_rest(self) -> None:
        """Writes the dumps that `follow` has not written yet. Called before the process ends."""
        with self._lock:
            while self._seen < _MOST_OF_RUN and (failure := ffi.await_failure(self._seen, waits=False)):
                self._write(failure)

    def _write(self, failure: dict[str, Any]) -> None:
        self._seen += 1
        try:
            content = _content(failure)
            files.write(self._path(content["process"]), json.dumps(content) + "\n")
        except Exception as error:  # the failed call matters more than its dump
            say(f"the dump of a failed call was not written: {error}")

    def _path(self, process: int) -> Path:
        """Returns an unused path, or the path of this process's oldest file if all paths are used."""

        def written(path: Path) -> float:
            return path.stat().st_mtime if path.exists() else 0.0

        return min((self._folder / f"process-{process}-{i}.json" for i in range(_MOST_FILES)), key=written)


def _content(failure: dict[str, Any]) -> dict[str, Any]:
    import jax

    now, latest, record = statistics.stats(), statistics.latest_calls(), failure["record"]
    calls = sorted(latest["calls"], key=lambda call: call["at_s"])
    most = min(_MOST_CALLS, _MOST_ARRIVALS // max((call["ranks"] for call in calls), default=1))
    error = {"text": failure["message"], "kind": record["error"]}
    error |= {name: record[name] for name in ("missing", "waiting", "calls") if name in record}
    return {
        "format": FORMAT,
        "version": VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "at_s": now.at_s,
        "process": jax.process_index(),
        "processes": jax.process_count(),
        "host": host_name(),
        "pid": os.getpid(),
        "error": error,
        "calls": calls[-most:],
        "devices": latest["devices"],
        "rails": [{name: value for name, value in rail.items() if name != "spans"} for rail in now.rails],
        "gone": now.gone,
        "generations": now.generations,
        "plans": statistics.without_files(now.plans),
    }
