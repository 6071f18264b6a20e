"""A job whose groups are adjusted together: nobody is late, then a process is, then nobody; run by the test."""

from __future__ import annotations

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import planner, train
from jaxcomm.profile import Link, Profile, Provenance
from tests.processes import jobs

LATE, LATE_S, STEPS = 2, 0.05, 16  # the process and its seconds


def two_racks(ranks: int) -> jaxcomm.plan.Plan:
    half = ranks // 2
    racks = [{"name": f"rack {i}", "ranks": [*range(half * i, half * i + half)], "uplink": 4.0} for i in range(2)]
    return planner.plan(
        Profile(
            ranks=ranks,
            link=Link(alpha_s=1e-5, beta_s_per_byte=1e-9, source="a test"),
            racks=racks,
            collective={"bytes": 2**20, "seconds": 1.0},
            provenance=Provenance(source="a test", tool="pytest"),
        )
    )


def main() -> None:
    jax.distributed.initialize()
    process = jax.process_index()
    os.environ["JAXCOMM_HOST"] = f"host{process}"  # so that there are links to measure
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    plan = two_racks(mesh.size)
    average = train.divide_and_shuffle(plan, "data")
    mapped = jax.shard_map(average, mesh=mesh, in_specs=(P("data"), P(), P()), out_specs=P("data"), check_vma=False)
    step = jax.jit(mapped)
    values = np.arange(mesh.size * 2**15, dtype=np.float32).reshape(mesh.size, -1)

    def array(full: np.ndarray, spec: P) -> jax.Array:
        return jax.make_array_from_callback(full.shape, NamedSharding(mesh, spec), lambda index: full[index])

    params, adjustment = array(values, P("data")), train.adjust_groups(plan)
    jobs.report("before", reason=adjustment.reason)
    for phase, delay_s in (("at first", 0.0), ("late", LATE_S), ("again", 0.0)):
        jaxcomm.reset_stats()
        table = array(adjustment.table, P())
        for number in range(STEPS + 1):
            time.sleep(delay_s * (process == LATE))
            params = jax.block_until_ready(step(params, jnp.int32(number), table))
        adjustment = train.adjust_groups(plan, adjustment, steps=STEPS)
        network = adjustment.network
        jobs.report(
            phase,
            groups=adjustment.groups.iterations,
            changed=adjustment.changed,
            late_s=adjustment.late_s,
            reason=adjustment.reason,
            measured_at_s=network and network.measured_at_s,
        )
    jobs.report("step", compiled=step._cache_size())


if __name__ == "__main__":
    main()
