"""One process of the section "processes", which jaxcomm.gpu.checks.ranks starts.

    python -m jaxcomm.gpu.checks.processes_rank processes 0 4 /tmp/folder   # part, process, processes, a shared folder

It ends with 0 if it found what it should; the first leaves rows for the report in the folder.
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

import jaxcomm
from jaxcomm import ffi, schedules
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import fused
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

DTYPES = ("float32", "bfloat16")
SIZES = (1 << 10, 1 << 20, 1 << 24)  # bytes of a rank
ELEMENTS, CALLS = 100_003, 11
LATE_S = 0.3  # by which the last process comes late
SHORT_S, COMPILED_S = 1.0, 5.0  # deadlines that it misses: of a call, and of one that the others still compile


def bits(job: Job) -> Iterator[Row]:
    """Sums, twice with other data, as the direct schedule's program adds."""
    for dtype in DTYPES:
        step = psum()
        for seed in range(2):
            call(f"{dtype}, call {seed}", step, data(job.ranks, ELEMENTS, dtype, seed))
        yield [f"direct, {dtype}", "same bits"]


def late(job: Job) -> Iterator[Row]:
    """The last process comes late, and the others wait for it; all see that it was the last."""
    step, unsharded = psum(), data(job.ranks, ELEMENTS + 1, "float32", seed=2)
    call("before", step, unsharded)
    job.barrier("late")
    if job.rank == job.ranks - 1:
        time.sleep(LATE_S)
    call("late", step, unsharded)
    job.barrier("late is over")
    arrivals = site(unsharded[0].nbytes)["arrivals"][-1]
    if np.argmax(arrivals) != job.ranks - 1 or arrivals[-1] < LATE_S / 2:
        sys.exit(f"process {job.rank} has other arrivals: {arrivals}")
    yield [f"process {job.ranks - 1} comes {LATE_S * 1e3:.0f} ms late", "same bits"]
    yield ["its arrival by the devices' clocks", f"{arrivals[-1] * 1e3:.1f} ms"]


def deadline(job: Job) -> Iterator[Row]:
    """The last process misses a call's deadline: the others name it, and the next call is right."""
    gone = job.ranks - 1
    step, unsharded = psum(), data(job.ranks, ELEMENTS + 2, "float32", seed=3)
    call("before", step, unsharded)
    ffi.set_deadline(SHORT_S)
    job.barrier("deadline")
    if job.rank == gone:
        job.await_others("deadline is over")
    message = failure(lambda: jax.block_until_ready(step(placed(unsharded, mesh()))))
    job.arrive("deadline is over")
    if "DeadlineError: psum #2 over 'data'" not in message:
        sys.exit(f"the error is another: {message}")
    if job.rank != gone and f"rank {gone} of {job.ranks} has not arrived after" not in message:
        sys.exit(f"the error does not name rank {gone}: {message}")
    ffi.set_deadline(60.0)
    yield ["a process misses the deadline", message.splitlines()[0]]
    call("after", step, unsharded)
    yield ["the next call", "same bits"]


def times(job: Job) -> Iterator[Row]:
    """The median call by size."""
    step = psum()
    for nbytes in SIZES:
        x = placed(np.ones((job.ranks, nbytes // 4), np.float32), mesh())
        yield [f"{nbytes >> 10} KiB of a rank", f"{median_seconds(step, x, CALLS) * 1e3:.2f} ms"]
    fused.check()


def absent(job: Job) -> Iterator[Row]:
    """The last process does not come to a call site at all, and is named."""
    ffi.set_deadline(COMPILED_S)
    job.barrier("absent")
    if job.rank == job.ranks - 1:
        return
    message = failure(lambda: jax.block_until_ready(psum()(placed(np.ones((job.ranks, 7), np.float32), mesh()))))
    if f"(process {job.ranks - 1}) has not come to share memory after" not in message:
        sys.exit(f"the error is another: {message}")
    yield ["a process does not come", next(line for line in message.splitlines() if "share memory" in line)]


PARTS = (bits, late, deadline, times, absent)


def psum() -> Step:
    """A step of its own over one device of each process."""
    return stepped(mesh(), partial(jaxcomm.psum, axis_name="data"))


def mesh() -> jax.sharding.Mesh:
    """The first device of each process."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return mesh_of([first[process] for process in sorted(first)])


def call(case: str, step: Step, unsharded: np.ndarray) -> None:
    """Ends this process if one bit of its result is not as the program adds."""
    wanted = by_numpy(schedules.direct(len(unsharded)), unsharded)
    result = step(placed(unsharded, mesh()))
    for got, should in rows_of(result, wanted):
        require_equal(case, got, should)
    fused.check()


def failure(act: Callable[[], object]) -> str:
    """The error of a call that must fail, on any rank."""
    try:
        act()
        fused.check()
    except (JaxcommError, jax.errors.JaxRuntimeError) as error:
        return str(error)
    sys.exit("a call that must fail gave a result")


def site(nbytes: int) -> dict[str, Any]:
    """The statistics of the calls of this size."""
    return next(site for site in ffi.sites() if site["bytes"] == nbytes)


def main() -> None:
    """Does all parts on the first GPU."""
    job = Job.from_arguments()
    jax.distributed.initialize(os.environ["JAXCOMM_COORDINATOR"], job.ranks, job.rank, local_device_ids=[0])
    rows: list[Row] = []
    with ending_at_once():
        for part in PARTS:
            for row in part(job):
                rows.append(row)
                if job.rank == 0:
                    (job.folder / "rows").write_text(json.dumps(rows))
    job.barrier("end")  # whoever leaves takes its memory along


if __name__ == "__main__":
    main()
