"""One mesh axis of host devices, and values placed on it. Imports JAX: import it after `use_host_devices`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

AXIS = "data"

_spec: Any = jax.sharding.PartitionSpec  # untyped in JAX, as is block_until_ready
_wait: Any = jax.block_until_ready
SPLIT, SAME = _spec(AXIS), _spec()


def mesh(devices: int) -> Mesh:
    """The first `devices` CPU devices along `AXIS`."""
    return Mesh(np.array(jax.devices("cpu")[:devices]), (AXIS,))


def place(values: Any, mesh: Mesh, spec: Any) -> Any:
    """Puts a tree of arrays on the mesh. `spec` is `SPLIT` (along the first dimension) or `SAME` (all on every device).

    In a job of several processes, all processes must pass the same values.
    """
    sharding = NamedSharding(mesh, spec)
    if jax.process_count() == 1:
        return jax.device_put(values, sharding)  # in a job, device_put would compare the values by a collective

    def put(value: Any) -> jax.Array:
        whole = np.asarray(value)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, values)


def here(array: jax.Array) -> np.ndarray[Any, Any]:
    """This process's part of an array."""
    return np.concatenate([np.asarray(shard.data) for shard in array.addressable_shards])


def wait(values: Any) -> Any:
    """Blocks until the values are computed, and returns them."""
    return _wait(values)
