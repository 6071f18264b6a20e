"""One process of the section "nccl" or "permutes". The process is one rank. jaxcomm.gpu.checks.ranks starts it.

    # section, rank, number of ranks, a folder that all ranks share, "bits" or "times" (which includes bits)
    python -m jaxcomm.gpu.checks.rank nccl 0 8 /tmp/folder times

Exits with 0 if all results are right. Process 0 writes the rows of the report into the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxcomm import schedules
from jaxcomm.collectives.permutes.programs import compiled
from jaxcomm.collectives.permutes.rounds import Ranks, run
from jaxcomm.collectives.permutes.steps import in_lines
from jaxcomm.collectives.request import Request
from jaxcomm.gpu import lowering, nccl
from jaxcomm.gpu.checks.expected import by_numpy
from jaxcomm.gpu.checks.job import (
    Job,
    Step,
    data,
    ending_at_once,
    median_seconds,
    mesh_of,
    placed,
    require_equal,
    rows_of,
    seconds_after_arrival,
    stepped,
)
from jaxcomm.gpu.checks.rows import Row
from jaxcomm.schedules import Schedule

DTYPES = ("float32", "bfloat16", "int32")
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)  # buffer sizes, in bytes per rank
LATE_S, LATE_BYTES = 0.05, 1 << 26  # the last rank's lateness in seconds, and the buffer size in bytes per rank
ELEMENTS, CALLS, REPEATS = 100_003, 3, 21

By = Callable[[Schedule], Step]


def all_schedules(ranks: int) -> dict[str, Schedule]:
    """Two schedules without a late rank, and one in which the other ranks wait for the late rank's messages."""
    return {
        "direct": schedules.direct(ranks),
        "ring": schedules.ring(ranks),
        "straggler": schedules.straggler(ranks, ranks - 1, 4 * ranks),
    }


def bits(job: Job, by: By) -> Iterator[Row]:
    """Checks the sums of every schedule bit for bit against NumPy, in several calls."""
    for name, schedule in all_schedules(job.ranks).items():
        step = by(schedule)
        for dtype in DTYPES:
            for call in range(CALLS):
                unsharded = data(job.ranks, ELEMENTS, dtype, seed=call)
                wanted = by_numpy(schedule, unsharded)
                for got, should in rows_of(step(placed(unsharded, mesh())), wanted):
                    require_equal(f"{name}, {dtype}, call {call}", got, should)
        yield [name, f"same bits, {CALLS} calls: " + ", ".join(DTYPES)]


def times(job: Job, by: By) -> Iterator[Row]:
    """Times each schedule and XLA's own sum: calls of each size, then calls from a late rank's arrival to the end."""
    steps = {name: by(schedule) for name, schedule in all_schedules(job.ranks).items()}
    steps["jax.lax"] = stepped(mesh(), partial(lax.psum, axis_name="data"))
    for nbytes in SIZES:
        x = placed(np.ones((job.ranks, nbytes // 4), np.float32), mesh())
        yield [
            f"{nbytes >> 10} KiB, ms",
            _listed({name: median_seconds(step, x, REPEATS) for name, step in steps.items()}),
        ]
    x = placed(np.ones((job.ranks, LATE_BYTES // 4), np.float32), mesh())
    after = {name: seconds_after_arrival(job, step, x, LATE_S, REPEATS, name) for name, step in steps.items()}
    yield [f"{LATE_BYTES >> 10} KiB, the last rank {LATE_S * 1e3:.0f} ms late, ms after it", _listed(after)]


def by_nccl(schedule: Schedule) -> Step:
    """A jitted function that sums the rows by this schedule, in one custom call."""
    groups = lowering.gpus([[*mesh().devices]])
    request = Request("psum", "all_reduce", "sum", "data", "", groups)
    attributes: Any = nccl.attributes(request, (schedule,))

    def psum(x: jax.Array) -> jax.Array:
        call: Any = jax.ffi.ffi_call(nccl.TARGET, jax.typeof(x), input_output_aliases={0: 0})
        result: jax.Array = call(x, **attributes)
        return result

    return stepped(mesh(), psum)


def by_permutes(schedule: Schedule) -> Step:
    """A jitted function that sums the rows by this schedule, with XLA's collective-permutes."""
    ranks = Ranks(("data",), [range(schedule.ranks)], schedule.ranks)

    def psum(x: jax.Array) -> jax.Array:
        flat = x[0]
        cuts = in_lines(flat.size, flat.dtype.itemsize, schedule.num_chunks)
        result: jax.Array = run(compiled(schedule, flat.nbytes), flat, cuts, ranks, lax.add)[None]
        return result

    return stepped(mesh(), psum)


BY: dict[str, By] = {"nccl": by_nccl, "permutes": by_permutes}


def mesh() -> jax.sharding.Mesh:
    """A mesh of all GPUs, in the order of processes 0, n - 1, n - 2, …, 1."""
    first, *others = jax.devices()
    return mesh_of([first, *reversed(others)])


def _listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {each * 1e3:.3f}" for name, each in seconds.items())


def main() -> None:
    """Runs the whole section on this process's GPU."""
    job, by = Job.from_arguments(), BY[sys.argv[1]]
    jax.distributed.initialize(os.environ["JAXCOMM_COORDINATOR"], job.ranks, job.rank)
    rows: list[Row] = []
    with ending_at_once():
        for part in (bits, times)[: 1 + (sys.argv[5] == "times")]:
            for row in part(job, by):
                rows.append(row)
                if job.rank == 0:
                    (job.folder / "rows").write_text(json.dumps(rows))
    job.barrier("end")
    # The first process is the coordinator, so it must end last.
    time.sleep(2.0 * (job.rank == 0))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
