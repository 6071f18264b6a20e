"""A training whose steps take megabytes of XLA's memory each: reports what a process holds, all the while.

Word: how many steps.
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs
from tests.processes.resources import held

ROWS, UNITS = 4, 720  # 2 MB of weights a layer
LOOKS = 10


def main(steps: int) -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=(P(), P()), check_vma=False)
    def step(weights: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        x = jax.random.normal(jax.random.key(0), (ROWS, UNITS))
        y = jnp.sin(x)

        def loss_of(weights: list[jax.Array]) -> jax.Array:
            return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

        loss, grads = jaxcomm.pmean(jax.value_and_grad(loss_of)(weights), "data")
        return [weight - 0.1 * grad for weight, grad in zip(weights, grads, strict=True)], loss

    weights, looks = [jnp.eye(UNITS) / 2, jnp.eye(UNITS) / 2], []
    for number in range(1, steps + 1):
        weights, loss = step(weights)
        loss.block_until_ready()
        if number % (steps // LOOKS) == 0:
            looks.append(held()["rss"])
    jobs.report("memory", rss=looks)


if __name__ == "__main__":
    main(int(sys.argv[1]))
