"""A program that knows nothing of jaxcomm's collectives: sums over all processes until a plan's trial is over, and some
more; run by a test.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.processes import jobs

ELEMENTS = 30_000
STEPS = 160


def main() -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((4,), ("a",))
    values = np.random.default_rng(0).integers(0, 100, (4, ELEMENTS)).astype(np.float32)  # exact in any order
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("a")), lambda index: values[index])
    step = jax.jit(jax.shard_map(lambda x: lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P("a")))
    wrong = 0
    for _ in range(STEPS):
        wrong += not np.array_equal(np.asarray(step(x).addressable_data(0))[0], values.sum(0))
    import jaxcomm

    def rows() -> list[dict[str, object]]:
        return [site for site in jaxcomm.stats() if site["bytes"] == 4 * ELEMENTS and site["calls"] == STEPS]

    while not rows():
        time.sleep(0.01)  # until this process has received all arrivals
    [row] = rows()
    jobs.report("tried", wrong=wrong, row={name: row.get(name) for name in ("calls", "early_calls", "trial")})


if __name__ == "__main__":
    main()
