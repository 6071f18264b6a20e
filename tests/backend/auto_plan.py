"""A program that knows nothing of jaxcomm's collectives, in which one process comes late to every step; run by a test.

It steps until the run has followed a plan, and reports its sums and what became of the plan.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.processes import jobs

ELEMENTS = 1 << 20
LATE_S = 0.04
STEPS = 40  # that processes take together before they ask the first one
LONGEST_S = 150


def main() -> None:
    jax.distributed.initialize()
    process, late = jax.process_index(), jax.process_count() - 1
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    step = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=NamedSharding(mesh, P()))
    values = np.random.default_rng(0).integers(0, 100, (jax.device_count(), ELEMENTS)).astype(np.float32)
    expected = values.sum(0)  # exact in any order

    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, P("data")), lambda index: array[index])

    x = place(values)
    is_over = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, P()))
    begun, wrong, steps, over = time.monotonic(), 0, 0, False
    while not over:
        for _ in range(STEPS):
            time.sleep(LATE_S * (process == late))
            wrong += not np.array_equal(np.asarray(step(x).addressable_data(0)), expected)
            steps += 1
        over = bool(is_over(place(np.full(jax.device_count(), has_compared(begun), np.int32))).addressable_data(0))
    import jaxcomm

    stats = jaxcomm.stats()
    if process == 0:
        print(stats, flush=True)
    rows = [site for site in stats if site["bytes"] == values[0].nbytes and site["calls"]]
    jobs.report(
        "auto plan",
        wrong=wrong,
        steps=steps,
        rows=[{name: row[name] for name in ("name", "axes", "plan", "ranks", "calls", "late")} for row in rows],
        events=stats.events,
        plans=[plan["plan"] for plan in stats.plans],
    )


def has_compared(begun: float) -> bool:
    """Whether this process has compared steps under a plan with those before, or has no time left."""
    import jaxcomm

    return any("after_s" in event for event in jaxcomm.stats().events) or time.monotonic() > begun + LONGEST_S


if __name__ == "__main__":
    main()
