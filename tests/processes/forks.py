"""Two processes, of which the first is forked between two calls, and the fork ends as Python programs do."""

from __future__ import annotations

import atexit
import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs


def main() -> None:
    jax.distributed.initialize()
    # Functions that are registered first are called last: JAX's own end, which waits for all processes, is left out.
    atexit.register(os._exit, 0)
    n = jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    local = np.full(1000, jax.process_index() + 1, np.float32)
    x = jax.make_array_from_callback((n * 1000,), NamedSharding(mesh, P("d")), lambda index: local)
    step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    for call in ("before", "after"):
        result = np.asarray(step(x).addressable_shards[0].data)
        jobs.report(call, right=bool((result == n * (n + 1) / 2).all()))
        if call == "before" and jax.process_index() == 0:
            child = os.fork()
            if child == 0:
                sys.exit()
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
