"""A program for processes of a rank each, of which another is late to each call."""

from __future__ import annotations

import hashlib
import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.collectives.plans import by_turns
from tests.processes.jobs import report

GRACE_S, LATE_S = 0.001, 0.3  # seconds
CALLS = 12


def late_to(call: int, ranks: int) -> int:
    """The rank that is late: each by turns, in another order each time."""
    return (call + call // ranks) % ranks


def calls() -> list[float]:
    """The seconds that calls took after their last arrival."""
    found: list[float] = next(each for each in jaxcomm.stats() if each["name"] == "psum")["after_arrival_s"]
    return found


def main() -> None:
    jax.distributed.initialize()
    ranks = jax.device_count()
    late = {"kind": sys.argv[1], "late": "any", "chunks": 2 * (ranks - 1)}
    jaxcomm.init(plan=by_turns(late, GRACE_S, ranks), trial=False)
    mesh = jax.make_mesh((ranks,), ("data",), axis_types=(AxisType.Auto,))
    values = np.random.default_rng(0).normal(size=(ranks, 200_000)).astype(np.float32)
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    summed = jax.shard_map(
        lambda v: jaxcomm.psum(v, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )

    def step_of(x: jax.Array) -> jax.Array:
        return summed(x)

    step_of.__name__ = f"step_of_{jax.process_index()}"  # all but the calls may differ
    step = jax.jit(step_of)
    step(x).block_until_ready()
    while not calls():  # once it has all arrivals
        time.sleep(0.001)
    jaxcomm.reset_stats()
    digests = []
    for call in range(CALLS):
        multihost_utils.sync_global_devices(f"before call {call}")
        if jax.process_index() == late_to(call, ranks):
            time.sleep(LATE_S)
        mine = np.asarray(step(x).block_until_ready().addressable_shards[0].data)[0]
        np.testing.assert_allclose(mine, values.sum(0, dtype=np.float64), atol=1e-4)
        digests.append(hashlib.sha256(mine.tobytes()).hexdigest())
        while len(calls()) <= call:
            time.sleep(0.001)
    (site,) = (each for each in jaxcomm.stats() if each["name"] == "psum")
    report("turns", digests=digests, default=site["early_calls"], late=site["late"], early=site["early_bytes_share"])


if __name__ == "__main__":
    main()
    sys.exit(0)
