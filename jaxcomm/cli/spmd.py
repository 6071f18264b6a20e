"""One mesh axis of host devices, and how values lie on it. Imports JAX: to be imported after `use_host_devices`."""

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
    """A tree of arrays on the mesh: `SPLIT` along the first dimension, or the `SAME` on every device."""
    return jax.device_put(values, NamedSharding(mesh, spec))


def wait(values: Any) -> Any:
    """The values, once they are there."""
    return _wait(values)
