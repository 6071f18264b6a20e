"""One process of the section "nccl", which jaxcomm.gpu.checks.ranks starts: it has one GPU, and is one rank.

    python -m jaxcomm.gpu.checks.nccl_rank nccl 0 8 /tmp/folder   # section, rank, ranks, a folder that all ranks share

It ends with 0 if it found what it should; process 0 leaves rows for the report in the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxcomm import schedules
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
    stepped,
)
from jaxcomm.gpu.checks.rows import Row
from jaxcomm.schedules import Schedule

DTYPES = ("float32", "bfloat16", "int32")
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)  # bytes of a rank
ELEMENTS, CALLS, REPEATS = 100_003, 3, 21


def all_schedules(ranks: int) -> dict[str, Schedule]:
    """The plain ones, and one for a late rank, whose messages other ranks wait for."""
    return {
        "direct": schedules.direct(ranks),
        "ring": schedules.ring(ranks),
        "straggler": schedules.straggler(ranks, ranks - 1, 4 * ranks),
    }


def bits(job: Job) -> Iterator[Row]:
    """Sums of every schedule, call after call, bit for bit against NumPy."""
    for name, schedule in all_schedules(job.ranks).items():
        step = by_nccl(schedule)
        for dtype in DTYPES:
            for call in range(CALLS):
                unsharded = data(job.ranks, ELEMENTS, dtype, seed=call)
                wanted = by_numpy(schedule, unsharded)
                for got, should in rows_of(step(placed(unsharded, mesh())), wanted):
                    require_equal(f"{name}, {dtype}, call {call}", got, should)
        yield [name, f"same bits, {CALLS} calls: " + ", ".join(DTYPES)]


def times(job: Job) -> Iterator[Row]:
    """The median call by size, of each schedule and of XLA's own sum."""
    for nbytes in SIZES:
        x = placed(np.ones((job.ranks, nbytes // 4), np.float32), mesh())
        steps = {name: by_nccl(schedule) for name, schedule in all_schedules(job.ranks).items()}
        steps["jax.lax"] = stepped(mesh(), partial(lax.psum, axis_name="data"))
        found = {name: f"{median_seconds(step, x, REPEATS) * 1e3:.3f}" for name, step in steps.items()}
        yield [f"{nbytes >> 10} KiB, ms", ", ".join(f"{name} {ms}" for name, ms in found.items())]


def by_nccl(schedule: Schedule) -> Step:
    """A jitted sum of the rows by this schedule."""
    groups = lowering.gpus([[*mesh().devices]])
    request = Request("psum", "all_reduce", "sum", "data", "", groups)
    attributes: Any = nccl.attributes(request, (schedule,))

    def psum(x: jax.Array) -> jax.Array:
        call: Any = jax.ffi.ffi_call(nccl.TARGET, jax.typeof(x), input_output_aliases={0: 0})
        result: jax.Array = call(x, **attributes)
        return result

    return stepped(mesh(), psum)


def mesh() -> jax.sharding.Mesh:
    """Of all GPUs, the first process's first, and then from the last process to the second."""
    first, *others = jax.devices()
    return mesh_of([first, *reversed(others)])


def main() -> None:
    """Does all on this process's GPU."""
    job = Job.from_arguments()
    jax.distributed.initialize(os.environ["JAXCOMM_COORDINATOR"], job.ranks, job.rank, local_device_ids=[job.rank])
    rows: list[Row] = []
    with ending_at_once():
        for part in (bits, times):
            for row in part(job):
                rows.append(row)
                if job.rank == 0:
                    (job.folder / "rows").write_text(json.dumps(rows))
    job.barrier("end")
    # The first process, through which the others meet, must end last.
    time.sleep(2.0 * (job.rank == 0))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
