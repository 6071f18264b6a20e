"""The file in which a benchmark writes the seconds of each turn: `--out FILE`, which `make claims` reads.

It is one JSON object, {"rows": [{…, "times": {"plan": [0.61, 0.63], "no plan": [0.86, 0.87]}}]}; the other fields of a
row describe the timed calls. `jaxcomm bench --out` writes such rows, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcomm import files


def row(times: Mapping[str, Sequence[float]], **of: Any) -> dict[str, Any]:
    """A row: the seconds of each way's turns, and the fields that describe the timed calls."""
    return {**of, "times": {way: list(each) for way, each in times.items()}}


def write(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows, if there is a path."""
    if path:
        files.write(path, json.dumps({"rows": list(rows)}, indent=1) + "\n")
