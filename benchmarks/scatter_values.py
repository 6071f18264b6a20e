"""Counts wrong results of `lax.psum_scatter` in groups of two devices, over Gloo or over jaxcomm.

    jaxcomm launch -n 4 benchmarks/scatter_values.py --turns 1000
    jaxcomm launch -n 4 --every-collective benchmarks/scatter_values.py --turns 1000

Operands are whole numbers in f64, so that any order of summation gives the same bits. Each process prints the counts of
its devices.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--mib", type=int, default=16, help="of a device's result")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("group", "in_group"))
    split = P(("group", "in_group"))
    elements = 2 * args.mib * (1 << 17)
    operand = np.random.default_rng(0).integers(0, 1000, (mesh.size, elements)).astype(np.float64)
    expected = operand.reshape(-1, 2, elements).sum(1).reshape(mesh.size, -1)
    array = jax.make_array_from_callback(operand.shape, NamedSharding(mesh, split), lambda index: operand[index])
    body = jax.shard_map(
        lambda x: lax.psum_scatter(x[0], "in_group", tiled=True)[None], mesh=mesh, in_specs=split, out_specs=split
    )
    scatter = jax.jit(body)
    wrong = {shard.device.id: 0 for shard in array.addressable_shards}
    for _ in range(args.turns):
        for shard in scatter(array).addressable_shards:
            wrong[shard.device.id] += not np.array_equal(shard.data[0], expected[shard.index[0].start or 0])
    for device, turns in wrong.items():
        print(f"device {device}: wrong in {turns} of {args.turns} turns")


if __name__ == "__main__":
    main()
