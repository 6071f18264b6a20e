"""A program for processes of a rank each, whose calls select one of two schedules by how late the last rank came."""

from __future__ import annotations

import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.collectives.plans import SPECS, selecting
from tests.processes.jobs import report

BELOW_S, LATE_S = 0.4, 0.8  # seconds; busy processors alone make a rank late by a tenth
LATE = [False, False, True, True, True, False, False, False, True, False]


def main() -> None:
    jax.distributed.initialize()
    ranks = jax.device_count()
    late = ranks - 1
    made = selecting(SPECS["ring"], SPECS["straggler"], BELOW_S, ranks=ranks)
    jaxcomm.init(plan=made)
    mesh = jax.make_mesh((ranks,), ("data",), axis_types=(AxisType.Auto,))
    values = np.arange(ranks * 50_000, dtype=np.float32).reshape(ranks, -1) % 101
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    step = jax.jit(
        jax.shard_map(
            lambda v: jaxcomm.psum(v, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
        )
    )
    step.lower(x).compile()
    multihost_utils.sync_global_devices("all have compiled")  # else the first call's lateness is that of compiling
    early = []
    for number, is_late in enumerate(LATE):
        if is_late and jax.process_index() == late:
            time.sleep(LATE_S)
        y = step(x).block_until_ready()
        for shard in y.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data)[0], values.sum(0))
        while (site := jaxcomm.stats()[0])["calls"] <= number:  # once it has all arrivals
            time.sleep(0.001)
        early.append(site["early_calls"])
    report("selector", early=early, plan=site["plan"] == made.hash[:8])


if __name__ == "__main__":
    main()
    sys.exit(0)
