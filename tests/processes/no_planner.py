"""A job of two processes with plan="auto" where OR-Tools is not installed; run by the test."""

from __future__ import annotations

import logging
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs


def main() -> None:
    sys.modules["ortools"] = None  # type: ignore[assignment]  # as if it were not installed
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("jaxcomm").addHandler(handler)
    jax.distributed.initialize()
    for _ in range(2):
        jaxcomm.init(plan="auto")
    mesh = jax.make_mesh((2,), ("d",))
    step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    values = np.arange(2.0, dtype=np.float32)
    x = jax.make_array_from_callback((2,), NamedSharding(mesh, P("d")), lambda index: values[index])
    sums = [float(step(x).addressable_shards[0].data[0]) for _ in range(3)]
    jaxcomm.init(plan={})
    jobs.report("no_planner", sums=sums, logged=logged, outcomes=[each["outcome"] for each in jaxcomm.stats().events])


if __name__ == "__main__":
    main()
