"""A program that knows nothing of jaxcomm's collectives: sums over all processes and over pairs; run by a test.

Word: the file for the run's statistics.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.processes import jobs

ELEMENTS = 30_000


def main(file: str) -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    values = np.random.default_rng(0).integers(0, 100, (2, 2, ELEMENTS)).astype(np.float32)  # exact in any order
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("a", "b")), lambda index: values[index])
    sums = {
        "all": (lambda x: lax.psum(x, ("a", "b")), P(), values.sum((0, 1))),
        "pairs": (lambda x: lax.psum(x, "b"), P("a"), values.sum(1)[jax.process_index() // 2]),
    }
    wrong = []
    for name, (body, out, expected) in sums.items():
        step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("a", "b"), out_specs=out, check_vma=False))
        for _ in range(3):
            found = np.asarray(step(x).addressable_data(0)).reshape(-1)
            wrong += [name] * (not np.array_equal(found, expected))
    import jaxcomm

    stats = jaxcomm.stats()
    if jax.process_index() == 0:
        stats.save(file)
    rows = {f"{site['ranks']} ranks": site["plan"] for site in stats if site["bytes"] == 4 * ELEMENTS and site["calls"]}
    jobs.report("planned", wrong=wrong, rows=rows, plans=[plan["plan"] for plan in stats.plans])


if __name__ == "__main__":
    main(sys.argv[1])
