"""One rank of a part of benchmarks/gpu_nccl.py about psum over several hosts, which starts it.

    python benchmarks/gpu_hosts_rank.py psum 0 4 /tmp/folder      # part, rank, ranks, a folder that all ranks share

Every rank is a process of `jax.distributed` that says it is on a host of its own. It ends with 0 if the rank found what
it should, and with 77 where XLA does not let several ranks share a GPU; process 0 leaves rows for the report in the
folder.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gpu_expected import by_numpy  # noqa: E402
from gpu_nccl import CANNOT  # noqa: E402
from gpu_nccl_rank import ELEMENTS, SHORT_S, Job, Rows, check, data, ending_at_once  # noqa: E402

from jaxcomm import schedules  # noqa: E402
from jaxcomm.ffi import lent, nccl  # noqa: E402

if TYPE_CHECKING:
    import jax

    from jaxcomm.plan import Plan

DTYPES = ("float32", "bfloat16", "int32")
CALLS = 3
HAS_PYDANTIC = find_spec("pydantic") is not None
# What XLA or NCCL says where they do not make a communicator.
REFUSED = re.compile(r"ncclCommInit|Duplicate GPU|clique", re.IGNORECASE)


def psum(job: Job) -> Rows:
    """Sums and maxima by the direct schedule and by those of plans, on ranks that are not in the order of processes.

    Plans need pydantic; where it is not installed, a row says that they were left out.
    """
    import jaxcomm

    mesh, mine = over(job)
    rows = [] if HAS_PYDANTIC else [["plans", "left out: pydantic is not installed"]]
    for name, plan in {"direct": None, **(plans(job.ranks) if HAS_PYDANTIC else {})}.items():
        for dtype in DTYPES:
            whole = data(job.ranks, ELEMENTS, dtype, seed=11)
            schedule = (plan and plan.schedule_for(whole[0].nbytes, dtype)) or schedules.direct(job.ranks)
            step = stepped(mesh, lambda x, plan=plan: jaxcomm.psum(x, "data", plan=plan))
            wanted = by_numpy(schedule, whole)[mine]
            for call in range(CALLS):
                check(f"{name}, {dtype}, call {call}", ran(step, placed(mesh, whole[mine])), wanted)
        rows.append([f"{name}: {schedule.kind}", f"same bits, {CALLS} calls: " + ", ".join(DTYPES)])
    whole = data(job.ranks, ELEMENTS, "float32", seed=12)
    step = stepped(mesh, lambda x: jaxcomm.pmax(x, "data"))
    check("pmax", ran(step, placed(mesh, whole[mine])), whole.max(axis=0))
    return [*rows, ["pmax", "same bits"]]


def lost(job: Job) -> Rows:
    """Rank 0, of the last process, does not come to a second call; the others are told so."""
    import jaxcomm

    mesh, mine = over(job)
    x = placed(mesh, np.ones(1000, np.float32))
    step = stepped(mesh, lambda x: jaxcomm.psum(x, "data"))
    ran(step, x)
    jaxcomm.init(deadline_s=SHORT_S)
    if mine == 0:
        return []
    try:
        ran(step, x)
    except Exception as error:
        text = str(error)
    else:
        sys.exit("a call that must fail gave a result")
    for wanted in (
        "DeadlineError: psum #2 over 'data ",
        f": rank 0 of {job.ranks} has not arrived after ",
        "end this process",
    ):
        if wanted not in text:
            sys.exit(f"the error does not say {wanted!r}: {text}")
    return [["rank 0 does not come", text.splitlines()[0]]]


WORK: dict[str, Callable[[Job], Rows]] = {"psum": psum, "lent": psum, "lent lost": lost}


def over(job: Job) -> tuple[jax.sharding.Mesh, int]:
    """The mesh of all GPUs, from the last process to the first, and this rank's position in it."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()[::-1]), ("data",)), job.ranks - 1 - job.rank


def plans(ranks: int) -> dict[str, Plan]:
    """One for ranks that come together and one for a late one."""
    from jaxcomm import planner
    from jaxcomm.profile import Link, Profile, Provenance

    made = {"ranks": ranks, "link": Link(alpha_s=1e-5, beta_s_per_byte=1e-10, source="made up")}
    made["provenance"] = Provenance(source="made up", tool="gpu_hosts_rank.py")
    late = {**made, "arrivals": [[0.0] * (ranks - 1) + [1.0]] * 4}
    return {
        "a plan": planner.plan(Profile.model_validate(made), ports=1),
        "a plan for a late rank": planner.plan(Profile.model_validate(late), ports=1),
    }


def stepped(mesh: jax.sharding.Mesh, reduce: Callable[[Any], Any]) -> Callable[[jax.Array], Any]:
    """A jitted reduction of the rows, each on its device, which must become the call that this part is about."""
    import jax

    rows = jax.sharding.PartitionSpec("data")
    step = jax.jit(jax.shard_map(reduce, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    target = lent.TARGET if nccl.LENT else nccl.TARGET

    def run(x: jax.Array) -> Any:
        if f"@{target}(" not in step.lower(x).as_text():
            sys.exit(f"the step does not call {target}")
        return step(x)

    return run


def placed(mesh: jax.sharding.Mesh, row: np.ndarray) -> jax.Array:
    """All ranks' rows, of which this one holds its own."""
    import jax

    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    mine = jax.device_put(row[None], jax.local_devices()[0])
    return jax.make_array_from_single_device_arrays((mesh.size, *row.shape), sharding, [mine])


def ran(step: Callable[[jax.Array], Any], x: jax.Array) -> np.ndarray:
    """This rank's row of the result."""
    return np.asarray(step(x).addressable_data(0))[0]


def port(job: Job) -> int:
    """Where rank 0 has the processes find each other."""
    file = job.folder / "port"
    if job.rank == 0:
        with socket.create_server(("localhost", 0)) as free:
            (new := file.with_suffix(".new")).write_text(str(free.getsockname()[1]))
        new.rename(file)
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def main() -> None:
    """Does its part's work on the first GPU."""
    import jax

    part, job = sys.argv[1], Job(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    jax.distributed.initialize(f"localhost:{port(job)}", job.ranks, job.rank, local_device_ids=[0])
    from jaxcomm import processes

    nccl.HOSTS, nccl.LENT = True, part.startswith("lent")
    processes.socket.gethostname = lambda: f"host{job.rank}"
    with ending_at_once():
        try:
            rows = WORK[part](job)
        except jax.errors.JaxRuntimeError as error:
            if not nccl.LENT or "jaxcomm: " in str(error) or not REFUSED.search(str(error)):
                raise
            print(f"XLA makes no communicator of ranks on one GPU: {str(error).splitlines()[0]}", flush=True)
            os._exit(CANNOT)
    if job.rank == 0:
        (job.folder / "rows").write_text(json.dumps(rows))
    job.meet("end")
    # After a fault on a communicator of XLA's this process would wait for its GPU; and the first process, which is
    # where the others meet, must end last.
    time.sleep(2.0 * (job.rank == 0))
    os._exit(0)


if __name__ == "__main__":
    main()
