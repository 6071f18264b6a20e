"""Times the slow parts of planning and loading: templates, unrolled tables, programs, and a plan for 1024 ranks.

Run from the repository's root: `.venv/bin/python benchmarks/schedules.py`
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxcomm import plan, planner, profile, schedules
from jaxcomm.plan.values import StragglerSpec
from jaxcomm.program.program import compile
from jaxcomm.program.verifier import verify_program, verify_schedule
from jaxcomm.report.tables import seconds_text, table
from jaxcomm.schedules import template as templates

_REPEATS = 5
_COUNTS = 4096


def main() -> None:
    """Prints one row for each part."""
    rows = [
        ["template of 1024 ranks with its tables", _time(lambda: _fresh_template(1024).to_json())],
        ["straggler, 256 ranks, 255 chunks, unrolled", _time(lambda: schedules.straggler(256, 0, 255).table())],
        ["straggler, 8 ranks, 112 chunks, compiled", _time(lambda: compile(schedules.straggler(8, 3, 112)))],
        ["the same, compiled and proved free of races", _time(lambda: _compile_and_prove(8, 112))],
        ["straggler, 8 ranks, 65 536 chunks, compiled and proved", _time(lambda: _compile_and_prove(8, 65536))],
        [
            "straggler, 64 ranks, 65 536 chunks (the limit), compiled and proved",
            _time(lambda: _compile_and_prove(64, 65536)),
        ],
        *(
            [f"{kind}, 64 ranks, every transfer executed", _time(lambda make=make: verify_schedule(make(64)))]
            for kind, make in _PLAIN.items()
        ),
    ]
    path = Path(tempfile.mkdtemp()) / "plan.json"
    plan.save(planner.plan(_profile(1024)), path)
    rows.append(
        [f"plan of 1024 ranks ({path.stat().st_size} bytes), loaded and proved", _time(lambda: plan.load(path))]
    )
    made = planner.plan(_profile(1024))
    many = [made.collectives[0].model_copy(update=_range(i, _COUNTS)) for i in range(_COUNTS)]
    plan.save(made.model_copy(update={"collectives": tuple(many)}), path)
    rows.append(
        [f"a plan of 1024 ranks with {_COUNTS} numbers of chunks, loaded and proved", _time(lambda: plan.load(path))]
    )
    print(table(["what", "median"], [[what, seconds_text(seconds)] for what, seconds in rows]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, planning included: {peak:.0f} MiB; {os.cpu_count()} cores")


_PLAIN = {
    "ring": schedules.ring,
    "halving/doubling": schedules.halving_doubling,
    "direct": schedules.direct,
    "straggler": lambda ranks: schedules.straggler(ranks, 5, 4 * (ranks - 1)),
}


def _fresh_template(ranks: int) -> schedules.Template:
    cached: Any = templates
    cached.cache_clear()
    return schedules.template(ranks)


def _compile_and_prove(ranks: int, chunks: int) -> None:
    schedule = schedules.straggler(ranks, 3, chunks)
    verify_program(compile(schedule), schedule)


def _range(index: int, count: int) -> dict[str, Any]:
    """The fields of one of several entries; each has another number of chunks."""
    spec = StragglerSpec(late="straggler", chunks=index + 1)
    return {"min_bytes": 8 * index, "max_bytes": 8 * index + 7 if index + 1 < count else None, "schedule": spec}


def _profile(ranks: int) -> profile.Profile:
    return profile.Profile(
        ranks=ranks,
        link=profile.Link(alpha_s=3e-6, beta_s_per_byte=1 / 450e9, source="assumed"),
        arrivals=[[0.01 * (rank == 7) for rank in range(ranks)]],
        provenance=profile.Provenance(source="assumed", tool="benchmarks/schedules.py"),
    )


def _time(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
