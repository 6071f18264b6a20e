"""Two processes on hosts of their own, which sum over the rails of JAXCOMM_RAILS. With the argument "kill", the second
process then kills itself."""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed.connect import members
from tests.processes import jobs

SIZES = (3, 5000, 400_000, 4 << 20)  # floats


def main() -> None:
    jax.distributed.initialize()
    process = jax.process_index()
    os.environ["JAXCOMM_HOST"] = f"host {process}"
    mesh = Mesh(np.array(jax.devices()), ("d",))
    step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))

    def sum_of(elements: int) -> np.ndarray:
        values = np.random.default_rng(elements).standard_normal((2, elements), np.float32)
        x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("d")), lambda index: values[index])
        return np.asarray(step(x).addressable_data(0))

    bits = [hashlib.sha256(sum_of(elements).tobytes()).hexdigest() for elements in SIZES]
    jobs.report("sums", bits=bits, kinds=members.connected().kinds)
    if sys.argv[1:] != ["kill"]:
        return
    if process == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            sum_of(SIZES[2])
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises either
        jobs.report("error", text=str(error))
        os._exit(0)  # the coordination service would wait for the other process


if __name__ == "__main__":
    main()
