"""A program that knows only JAX: a linear model, whose gradient XLA sums over all processes.

jaxcomm launch -n 4 --every-collective recipes/cluster/train.py
JAXCOMM_EVERY_COLLECTIVE=1 sbatch recipes/cluster/slurm.sh recipes/cluster/train.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(jax.devices(), ("data",))


@jax.jit
def step(params: jax.Array, x: jax.Array) -> jax.Array:
    """One step on all processes' examples; the model should learn to sum them."""
    return params - 0.1 * jax.grad(lambda params: jnp.mean((x @ params - x.sum(1)) ** 2))(params)


rng = np.random.default_rng(jax.process_index())
params = jax.device_put(np.zeros(64, np.float32), NamedSharding(mesh, P()))
for _ in range(100):
    local = rng.standard_normal((32 * jax.local_device_count(), 64), np.float32)
    params = step(params, jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), local))
if jax.process_index() == 0:
    print(f"distance {float(abs(params - 1).max()):.3f} over {jax.process_count()} processes")
