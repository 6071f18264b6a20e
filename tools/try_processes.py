"""Tries an installed jaxcomm between processes: sums of several types and sizes, compared with numpy's.

    jaxcomm launch -n 2 tools/try_processes.py

Each process prints a line about what passed, or fails with the first error.
"""

from __future__ import annotations

import platform

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi

TYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8)
SIZES = (3, 5_000, 300_000)  # one message, an exchange, and segments of many messages


def check_sums() -> None:
    """Checks sums of small integers, which every type holds exactly."""
    ranks = jax.device_count()
    mesh = jax.make_mesh((ranks,), ("data",))
    tree = [np.random.default_rng(0).integers(0, 9, (ranks, size)).astype(dtype) for dtype in TYPES for size in SIZES]
    sharding = NamedSharding(mesh, P("data"))
    operands = [jax.make_array_from_callback(each.shape, sharding, each.__getitem__) for each in tree]
    step = jax.shard_map(
        lambda *local: [jaxcomm.psum(each[0], "data") for each in local], mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    for each, result in zip(tree, jax.jit(step)(*operands), strict=True):
        np.testing.assert_array_equal(np.asarray(result), each.sum(0, dtype=each.dtype))
    assert sum(site["calls"] for site in jaxcomm.stats()) == len(tree), jaxcomm.stats()


if __name__ == "__main__":
    jax.distributed.initialize()
    check_sums()
    print(f"process {jax.process_index()}: passed; {platform.machine()}, kernels for {ffi.kernel_isa()}")
