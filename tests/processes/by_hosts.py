"""Collectives of four processes, each on the host that the arguments give it: what they run, their bits, and whether
they are right."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs

LARGE = 2**18  # floats: the fewest that go round a ring where each rank is on a host of its own
SIZES = (LARGE - 4, LARGE, LARGE + 4100)
RANKS, PAIRS = (0, 1, 2, 3), ((0, 1), (2, 3))


def main() -> None:
    jax.distributed.initialize()
    process = jax.process_index()
    os.environ["JAXCOMM_HOST"] = f"host {sys.argv[1 + process]}"
    mesh = Mesh(np.array(jax.devices()), ("d",))
    pair = PAIRS[process // 2]
    for elements in SIZES:
        whole = np.random.default_rng(elements).standard_normal((4, elements), np.float32)
        slices = np.ascontiguousarray(whole[:, : elements // 4])

        def run(case: str, body: Callable[[Any], Any], values: np.ndarray, expected: np.ndarray) -> None:
            sharding = NamedSharding(mesh, P("d"))
            x = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
            jaxcomm.reset_stats()
            step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
            found = np.asarray(step(x).addressable_shards[0].data).ravel()
            deadline = time.monotonic() + 10  # a call counts a moment after its result is there
            while not (runs := [site["plan"] for site in jaxcomm.stats() if site["calls"]]):
                assert time.monotonic() < deadline
            jobs.report(
                case,
                runs=runs,
                bits=hashlib.sha256(found.tobytes()).hexdigest(),
                error=float(np.abs(found - expected.ravel()).max()),
            )

        psum = partial(jaxcomm.psum, axis_name="d")
        own = slice(process * elements // 4, (process + 1) * elements // 4)
        run(f"psum of {elements}", psum, whole, whole.sum(0))
        run(f"psum of pairs of {elements}", partial(psum, axis_index_groups=PAIRS), whole, whole[list(pair)].sum(0))
        run(
            f"psum_scatter of {elements}",
            lambda x: jaxcomm.psum_scatter(x[0], "d", tiled=True)[None],
            whole,
            whole.sum(0)[own],
        )
        run(f"all_gather of {elements}", lambda x: jaxcomm.all_gather(x[0], "d", tiled=True)[None], slices, slices)


if __name__ == "__main__":
    main()
