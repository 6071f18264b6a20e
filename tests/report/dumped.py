"""Dumps of a job of three processes, of which process 2 has not arrived at a sum."""

from __future__ import annotations

import datetime
from typing import Any

BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATE = "DeadlineError: psum #412 over 'data' (16 MiB, plan ring): rank 2 of 3 has not arrived after 10.0 s; 0,1 wait."


def call(arrivals: list[float | None], **fields: Any) -> dict[str, Any]:
    """A failed sum of three processes, which began 100 s after the run."""
    record = {"name": "psum", "axes": "data", "plan": "ring", "ranks": 3, "bytes": 2**24, "id": 7, "number": 412}
    record |= {"at_s": 100.0, "arrivals": arrivals, "took_s": 10.0, "processes": [0, 1, 2], "error": LATE}
    return record | fields


def dumped(
    process: int, *calls: dict[str, Any], at_s: float = 110.0, text: str = LATE, **fields: Any
) -> dict[str, Any]:
    """A process's dump, written `at_s` after the run began."""
    written = (BEGAN + datetime.timedelta(seconds=at_s)).isoformat()
    record = {"format": "jaxcomm-dump", "version": 1, "written": written, "at_s": at_s, "process": process}
    record |= {"processes": 3, "host": f"node-{process}", "pid": 4711, "calls": [*calls], "devices": []}
    return record | {"error": {"text": text, "kind": "DeadlineError"}} | fields


WAITING = [dumped(0, call([0.0, 0.5, None])), dumped(1, call([-0.5, 0.0, None], at_s=100.5), at_s=110.01)]
