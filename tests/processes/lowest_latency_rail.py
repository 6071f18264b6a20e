"""A program for two processes on two rails, to the first of which the fast one has a long way: what its rails carry."""

from __future__ import annotations

import socket

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed.rails import connections as rail_connections
from tests.processes import jobs

SHORT, SHORT_S, LONG_S = "127.0.0.2", 40e-6, 1e-3


def measured(connection: socket.socket) -> float | None:
    """In place of what the kernel measures: the second process knows nothing."""
    if jax.process_index() == 1:
        return None
    return SHORT_S if SHORT in {connection.getsockname()[0], connection.getpeername()[0]} else LONG_S


def calls(times: int, elements: int) -> None:
    """Sums, and reports what the rails have carried since the start, and whether the sums are right."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    whole = np.arange(2 * elements, dtype=np.float32).reshape(2, elements) % 1001
    x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("d")), lambda index: whole[index])
    sums = [psum(x) for _ in range(times)]
    right = all(np.array_equal(each.addressable_shards[0].data[0], whole.sum(0)) for each in sums)
    rails = [{key: rail[key] for key in ("rail", "shares", "bytes")} for rail in jaxcomm.stats().rails]
    jobs.report(f"{elements} elements", right=right, rails=rails)


def main() -> None:
    jax.distributed.initialize()
    rail_connections.round_trip_s = measured
    jaxcomm.init()
    calls(100, 256)
    calls(5, 1 << 20)


if __name__ == "__main__":
    main()
