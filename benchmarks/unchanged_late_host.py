"""Times a step of plain JAX, without a line of jaxcomm's, on several hosts of which one is late.

    F=benchmarks/late_host_unlike_rails.toml
    jaxcomm testbed run $F -- jaxcomm profile --late rank=3,ms=100 --out profile.json
    jaxcomm plan profile.json --out plan.json
    JAXCOMM_EVERY_COLLECTIVE=1 JAXCOMM_PLAN=plan.json jaxcomm testbed run $F -- python benchmarks/unchanged_late_host.py
    JAXCOMM_EVERY_COLLECTIVE=1 jaxcomm testbed run $F -- python benchmarks/unchanged_late_host.py

With a plan, the first steps are the plan's trial; with `JAXCOMM_TRIAL=0` the plan runs from the first step on.
`make claims` alternates launches with and without a plan.

A step sums `--bytes` of all processes and waits for the sum. Before it the late host sleeps as the testbed's file says.
Checks every sum. The first process prints medians over `--steps`: of whole steps, and from the late host's arrival to
the end. `--way` names the launch in the file of `--out`, whose times are from the arrival.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import turns
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    """Runs the steps; the first process prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=8 << 20)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--before", type=int, default=2, help="steps that do not count; 80 end a trial; default 2")
    parser.add_argument("--way", default="plan" if os.environ.get("JAXCOMM_PLAN") else "no plan")
    parser.add_argument("--out", help="also write the seconds of each step to this file, as JSON")
    args = parser.parse_args()
    jax.distributed.initialize()
    delay_s = float(os.environ.get("JAXCOMM_TESTBED_DELAY_S") or 0)
    mesh = Mesh(jax.devices(), ("data",))
    values = np.random.default_rng(0).integers(0, 100, (jax.device_count(), args.bytes // 4)).astype(np.float32)
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    step = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=NamedSharding(mesh, P()))
    expected, took = values.sum(0), []
    late_s = float(np.max(multihost_utils.process_allgather(np.float32(delay_s))))
    for _ in range(args.before + args.steps):
        begun = time.monotonic()
        time.sleep(delay_s)
        total = step(x).block_until_ready()
        took.append(time.monotonic() - begun)
        assert np.array_equal(np.asarray(total.addressable_data(0)), expected)  # exact in any order
    if jax.process_index() == 0:
        steps = took[args.before :]  # the first ones compile and connect
        after = [each - late_s for each in steps]  # a step begins when all processes have ended the previous one
        medians = [1e3 * statistics.median(each) for each in (steps, after)]
        turns.write(args.out, [turns.row({args.way: after}, bytes=args.bytes)])
        print(
            f"{args.way}: a step of {args.bytes >> 10} KiB takes {medians[0]:.0f} ms, {medians[1]:.0f} from the arrival"
        )


if __name__ == "__main__":
    main()
