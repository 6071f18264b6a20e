"""A program for four processes that end one after the other while the rest call: killed, by an error, normally."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs


def step_of(ranks: int, elements: int) -> tuple[Any, jax.Array]:
    """The sum over the first ranks, and its operand."""
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("d",))
    body = jax.shard_map(
        lambda x: jaxcomm.psum(x, "d") / ranks, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
    )
    full = np.ones(ranks * elements, np.float32)
    return jax.jit(body), jax.make_array_from_callback(
        full.shape, NamedSharding(mesh, P("d")), lambda index: full[index]
    )


def calls(ranks: int) -> str:
    """Calls until one fails, of which the report says how; again, to see that the next one fails as well."""
    step, x = step_of(ranks, 1 << 20)
    found = []
    for _ in range(2):
        try:
            with jaxcomm.errors.translated():
                while True:
                    x = jax.block_until_ready(step(x))
        except jaxcomm.errors.JaxcommError as error:
            found.append(str(error))
        step, x = step_of(ranks, 4)
    jobs.report(f"of {ranks}", errors=found, at=time.time())
    return found[0]


def main() -> None:
    jax.distributed.initialize()
    # Functions that are registered first are called last: JAX's own wait for all processes, of which one is dead, is
    # left out.
    atexit.register(os._exit, 0)
    me = jax.process_index()
    for left in (4, 3, 2):
        step, x = step_of(left, 1 << 20)
        for _ in range(3):
            x = jax.block_until_ready(step(x))
        total = np.asarray(x.addressable_shards[0].data)
        jobs.report(f"before {left}", works=bool((total == 1).all()))
        if me < left - 1:
            calls(left)
            continue
        jobs.report("ends", at=time.time())
        if left == 4:
            calls_ahead = [step(x) for _ in range(3)]
            os.kill(os.getpid(), signal.SIGKILL)
            del calls_ahead
        if left == 3:
            raise ValueError("a bug of the user's")
        sys.exit(0)


if __name__ == "__main__":
    main()
