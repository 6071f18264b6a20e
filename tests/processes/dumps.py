"""A program for three processes, the last of which comes to a sum after its deadline."""

from __future__ import annotations

import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs


def main() -> None:
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    body = jax.shard_map(
        lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
    )
    step, full = jax.jit(body), np.ones(3, np.float32)
    x = jax.make_array_from_callback(full.shape, NamedSharding(mesh, P("data")), lambda index: full[index])
    for _ in range(2):
        jax.block_until_ready(step(x))
    if jax.process_index() == 2:
        time.sleep(2.5)
    try:
        with jaxcomm.errors.translated():
            jax.block_until_ready(step(x))
    except jaxcomm.errors.DeadlineError as error:
        jobs.report("late", missing=error.missing)


if __name__ == "__main__":
    main()
