"""A training step of plain JAX, without a line of jaxcomm's, on hosts of which one is late: how long it takes.

    F=benchmarks/late_host_unlike_rails.toml
    jaxcomm testbed run $F -- jaxcomm profile --late rank=3,ms=100 --out profile.json
    jaxcomm plan profile.json --out plan.json
    JAXCOMM_EVERY_COLLECTIVE=1 JAXCOMM_PLAN=plan.json jaxcomm testbed run $F -- python benchmarks/unchanged_late_host.py
    JAXCOMM_EVERY_COLLECTIVE=1 jaxcomm testbed run $F -- python benchmarks/unchanged_late_host.py

A step sums `--bytes` of all processes and waits for the sum; before it the late host sleeps as the testbed's file says.
Prints the median of `--steps` on the first process, and checks every sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    """Steps, and prints on the first process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=8 << 20)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    jax.distributed.initialize()
    delay_s = float(os.environ.get("JAXCOMM_TESTBED_DELAY_S") or 0)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    values = np.random.default_rng(0).integers(0, 100, (jax.device_count(), args.bytes // 4)).astype(np.float32)
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    step = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=NamedSharding(mesh, P()))
    expected, took = values.sum(0), []
    for _ in range(args.steps + 2):
        begun = time.monotonic()
        time.sleep(delay_s)
        total = step(x).block_until_ready()
        took.append(time.monotonic() - begun)
        assert np.array_equal(np.asarray(total.addressable_data(0)), expected)  # exact in any order
    if jax.process_index() == 0:
        median = statistics.median(took[2:])  # the first ones compile and connect
        print(f"a step of {args.bytes >> 10} KiB takes {1e3 * median:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
