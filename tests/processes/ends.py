"""A program for two processes, of which the first ends amid steps whose results it has dropped.

Words: how it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.ffi.cpu import CPU
from tests.processes import jobs

STEPS = 4


def body(x: Any) -> Any:
    """A mean, after some time in which the step is in no call."""
    power = jnp.ones((400, 400)) + 0 * x[0]
    for _ in range(60):
        power = power @ power / 400  # exact, so that it stays finite
    return jaxcomm.pmean(x + 0 * power[0, 0], "d")


def until_a_call_begins() -> None:
    awaits = ctypes.c_int()
    while not awaits.value:
        CPU.call("job_awaits", ctypes.byref(awaits))
        time.sleep(0.01)


def main(way: str) -> None:
    jax.distributed.initialize()
    jaxcomm.init(deadline_s=100)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    local = np.full(4, 1.0 + 2 * jax.process_index(), np.float32)
    first = jax.make_array_from_callback((8,), NamedSharding(mesh, P("d")), lambda index: local)
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    step.lower(first).compile()

    def run(steps: int = STEPS) -> jax.Array:
        x = first
        for _ in range(steps):
            x = step(x)
        return x

    jax.block_until_ready(run(1))
    steps = 1 if way == "daemon" else STEPS
    if jax.process_index() == 1:
        time.sleep(1)  # the other one is at its end
        total = np.asarray(run(steps).addressable_shards[0].data)
        jobs.report("last step", right=bool((total == 2).all()))
        if way == "shutdown":
            jax.distributed.shutdown()
        return
    if way == "atexit":
        atexit.register(run)
    elif way == "daemon":
        threading.Thread(target=lambda: (run(steps), threading.Event().wait()), daemon=True).start()
        until_a_call_begins()
    else:
        run()
    if way == "exit":
        sys.exit(3)
    if way == "raises":
        raise ValueError("a bug of the user's")
    if way == "shutdown":
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
