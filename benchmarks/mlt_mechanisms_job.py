"""The processes of `benchmarks/mlt_mechanisms.py`: means of a model's gradients after barriers.

Process 0 prints "@mean SECONDS LOST [FIRST LAST]" after each: the time of the whole mean, the lost share of the bytes
that were to come to process 0, and, with priorities, the times of the first and the last layer, both from the last
process's arrival to the end of the layer's sum.
"""

from __future__ import annotations

import sys
import time

import jax
import numpy as np

import jaxcomm
from jaxcomm import jax_compat
from jaxcomm.train import Drop

BARRIER_MS = 120_000
LAYERS = 8


def main(kibibytes: int, bound: float, has_priorities: bool, means: int) -> None:
    """Averages LAYERS tensors of `kibibytes` each, of which the share `bound` may stay lost.

    If `bound` is 0, nothing may stay lost, or with priorities one segment of each tensor.
    """
    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    place = jax.NamedSharding(mesh, jax.P("data"))
    # Layers differ in size by one element, so that the statistics have a row for each.
    sizes = [(kibibytes << 8) + layer for layer in range(LAYERS)]
    gradients = {f"layer {layer}": tensor(place, layer, size) for layer, size in enumerate(sizes)}
    drop = Drop(
        bound or 1.01 * 4096 / (4 * sizes[0]),  # one segment: without any no packet may have a priority
        "network",
        priorities={name: layer for layer, name in enumerate(gradients)} if has_priorities else {},
    )
    is_exact = bound == 0 and not has_priorities

    def step(gradients: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return jaxcomm.pmean(gradients, "data", drop=None if is_exact else drop)

    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
    coming = 4 * sum(sizes) * (1 - 1 / jax.device_count())
    for number in range(means):
        jax_compat.key_value_store().wait_at_barrier(f"mean {number}", BARRIER_MS)
        jaxcomm.reset_stats()
        start = time.perf_counter()
        jax.block_until_ready(step(gradients))
        seconds = time.perf_counter() - start
        if jax.process_index() == 0:
            rows = {site["bytes"]: site for site in jaxcomm.stats()}
            lost = sum(site["lost_bytes"] for site in rows.values()) / coming
            ends = [rows[4 * sizes[layer]]["after_arrival_s"][0] for layer in (0, -1)] if has_priorities else []
            print("@mean", seconds, lost, *ends, flush=True)


def tensor(place: jax.NamedSharding, layer: int, size: int) -> jax.Array:
    own = np.random.default_rng([layer, jax.process_index()]).standard_normal(size, np.float32)
    return jax.make_array_from_callback((size * jax.device_count(),), place, lambda index: own)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "priorities", int(sys.argv[4]))
