"""Both processes of `benchmarks/udp_paths.py`: sums after barriers. The first prints "@sum SECONDS" after each."""

from __future__ import annotations

import sys
import time
from functools import partial

import jax
import numpy as np

import jaxcomm
from jaxcomm import jax_compat

BARRIER_MS = 60_000


def main(kind: str, mib: int, sums: int) -> None:
    """Sums by jaxcomm or by lax, which is Gloo over TCP."""
    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    elements = mib << 18
    each = [np.random.default_rng(process).standard_normal(elements, np.float32) for process in range(2)]
    own = each[jax.process_index()]
    shape = (elements * jax.device_count(),)
    x = jax.make_array_from_callback(shape, jax.NamedSharding(mesh, jax.P("data")), lambda index: own)
    psum = partial({"jaxcomm": jaxcomm.psum, "lax": jax.lax.psum}[kind], axis_name="data")
    step = jax.jit(jax.shard_map(psum, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
    for number in range(sums):
        jax_compat.key_value_store().wait_at_barrier(f"sum {number}", BARRIER_MS)
        start = time.perf_counter()
        found = jax.block_until_ready(step(x))
        seconds = time.perf_counter() - start
        assert np.array_equal(found.addressable_shards[0].data, each[0] + each[1])
        if jax.process_index() == 0:
            print(f"@sum {seconds:.6f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
