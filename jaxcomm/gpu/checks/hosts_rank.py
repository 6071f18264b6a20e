"""One process of the sections "hosts …", which jaxcomm.gpu.checks.ranks starts.

    python -m jaxcomm.gpu.checks.hosts_rank bits 0 4 /tmp/folder   # part, rank, ranks, a folder that all ranks share

Every rank is a process of `jax.distributed` that says it is on a host of its own. It ends with 0 if the rank found what
it should; process 0 leaves rows for the report in the folder.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING
from unittest import mock

import jax
import numpy as np

import jaxcomm
from jaxcomm import ffi, schedules
from jaxcomm.gpu import nccl
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

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

DTYPES = ("float32", "bfloat16", "int32")
SIZES = tuple(2**power for power in range(10, 27, 4))  # bytes
ELEMENTS, CALLS, REPEATS = 100_003, 3, 20
SHORT_S = 10.0  # deadline of a call that must fail
HAS_PYDANTIC = find_spec("pydantic") is not None


def bits(job: Job) -> list[Row]:
    """Sums and maxima by the direct schedule and by those of plans, on ranks that are not in the order of processes.

    Plans need pydantic; where it is not installed, a row says that they were left out.
    """
    rows = [] if HAS_PYDANTIC else [["plans", "left out: pydantic is not installed"]]
    for name, plan in {"direct": None, **(plans(job.ranks) if HAS_PYDANTIC else {})}.items():
        for dtype in DTYPES:
            unsharded = data(job.ranks, ELEMENTS, dtype, seed=11)
            schedule = (plan and plan.schedule_for(unsharded[0].nbytes, dtype)) or schedules.direct(job.ranks)
            step = by_messages(partial(jaxcomm.psum, axis_name="data", plan=plan), unsharded)
            for call in range(CALLS):
                expect(f"{name}, {dtype}, call {call}", step, unsharded, by_numpy(schedule, unsharded))
        rows.append([f"{name}: {schedule.kind}", f"same bits, {CALLS} calls: " + ", ".join(DTYPES)])
    unsharded = data(job.ranks, ELEMENTS, "float32", seed=12)
    step = by_messages(partial(jaxcomm.pmax, axis_name="data"), unsharded)
    expect("pmax", step, unsharded, np.broadcast_to(unsharded.max(axis=0), unsharded.shape))
    return [*rows, ["pmax", "same bits"]]


def times(job: Job) -> list[Row]:
    """The median call by size."""
    rows, step = [], stepped(mesh(), partial(jaxcomm.psum, axis_name="data"))
    for nbytes in SIZES:
        x = placed(np.ones((job.ranks, nbytes // 4), np.float32), mesh())
        rows.append([f"{nbytes} B, direct", f"{median_seconds(step, x, REPEATS) * 1e6:.1f} µs"])
    return rows


def order(job: Job) -> list[Row]:
    """The last rank calls another function where the others sum: the error names both on all ranks."""
    unsharded = data(job.ranks, 1000, "float32", seed=13)
    psum = by_messages(partial(jaxcomm.psum, axis_name="data"), unsharded)
    pmax = by_messages(partial(jaxcomm.pmax, axis_name="data"), unsharded)
    last = mesh().devices[-1].process_index == jax.process_index()
    text = failure(pmax if last else psum, unsharded)
    if "another call than rank" not in text or "psum #1" not in text or "pmax #1" not in text:
        sys.exit(f"the error does not name both calls: {text}")
    return [["another call", text.splitlines()[0]]]


def lost(job: Job) -> list[Row]:
    """The last rank does not come to a second call; the others get an error that says so."""
    unsharded = data(job.ranks, 1000, "float32", seed=14)
    step = by_messages(partial(jaxcomm.psum, axis_name="data"), unsharded)
    jax.block_until_ready(step(placed(unsharded, mesh())))
    ffi.set_deadline(SHORT_S)
    last = job.ranks - 1
    if mesh().devices[last].process_index == jax.process_index():
        return []
    text = failure(step, unsharded)
    wanted = f": rank {last} of {job.ranks} has not arrived after "
    if "DeadlineError: psum #2 over 'data " not in text or wanted not in text:
        sys.exit(f"the error does not name rank {last}: {text}")
    return [[f"rank {last} does not come", text.splitlines()[0]]]


WORK: dict[str, Callable[[Job], list[Row]]] = {"bits": bits, "times": times, "order": order, "lost": lost}


def mesh() -> jax.sharding.Mesh:
    """Of all GPUs, the first process's first, and then from the last process to the second."""
    first, *others = jax.devices()
    return mesh_of([first, *reversed(others)])


def plans(ranks: int) -> dict[str, Plan]:
    """One for ranks that come together and one for a late one."""
    from jaxcomm import planner
    from jaxcomm.profile import Link, Profile, Provenance

    made = {"ranks": ranks, "link": Link(alpha_s=1e-5, beta_s_per_byte=1e-10, source="made up")}
    made["provenance"] = Provenance(source="made up", tool="jaxcomm check")
    late = {**made, "arrivals": [[0.0] * (ranks - 1) + [1.0]] * 4}
    return {
        "a plan": planner.plan(Profile.model_validate(made), ports=1),
        "a plan for a late rank": planner.plan(Profile.model_validate(late), ports=1),
    }


def by_messages(reduce: Callable[[jax.Array], jax.Array], unsharded: np.ndarray) -> Step:
    """A jitted reduction of the rows, which must become a call by messages."""
    step = jax.jit(stepped(mesh(), reduce))
    if f"@{nccl.TARGET}(" not in step.lower(placed(unsharded, mesh())).as_text():
        sys.exit(f"the step does not call {nccl.TARGET}")
    return step


def expect(case: str, step: Step, unsharded: np.ndarray, wanted: np.ndarray) -> None:
    """Ends this process if one bit of its result is another."""
    for got, should in rows_of(step(placed(unsharded, mesh())), wanted):
        require_equal(case, got, should)


def failure(step: Step, unsharded: np.ndarray) -> str:
    """The error of a call that must fail."""
    try:
        jax.block_until_ready(step(placed(unsharded, mesh())))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    sys.exit("a call that must fail gave a result")


def main() -> None:
    """Does its part's work on the first GPU."""
    job = Job.from_arguments()
    jax.distributed.initialize(os.environ["JAXCOMM_COORDINATOR"], job.ranks, job.rank, local_device_ids=[0])
    with ending_at_once(), mock.patch.object(socket, "gethostname", lambda: f"host{job.rank}"):
        rows = WORK[sys.argv[1]](job)
    if job.rank == 0:
        (job.folder / "rows").write_text(json.dumps(rows))
    job.barrier("end")
    # The first process, through which the others meet, must end last.
    time.sleep(2.0 * (job.rank == 0))
    os._exit(0)


if __name__ == "__main__":
    main()
