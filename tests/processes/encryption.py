"""Two processes on hosts of their own, which sum what a reader of the network's packets would recognize.

With the argument "one", only the second process encrypts.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed.connect import members
from tests.processes import jobs

PATTERN: Final = b"a secret gradient of this job..."  # the bytes of 8 floats
ELEMENTS: Final = 200_000


def main() -> None:
    jax.distributed.initialize()
    process = jax.process_index()
    os.environ["JAXCOMM_HOST"] = f"host {process}"
    if sys.argv[1:] == ["one"]:
        os.environ["JAXCOMM_ENCRYPT"] = str(process)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    values = np.resize(np.frombuffer(PATTERN, np.float32), (2, ELEMENTS))
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("d")), lambda index: values[index])
    try:
        total = np.asarray(step(x).addressable_data(0))
    except (jax.errors.JaxRuntimeError, jaxcomm.JaxcommError, ValueError) as error:  # JAX raises either
        jobs.report("sum", error=str(error))
        return
    jobs.report("sum", right=bool((total == values.sum(0)).all()), kinds=members.connected().kinds)


if __name__ == "__main__":
    main()
