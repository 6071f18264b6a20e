"""How fast the kernels behind `jaxcomm.train.Drop` pass over a gradient, beside a copy on this machine.

    python benchmarks/masks.py --sizes 16MiB,64MiB

One processor, one device. Rates are bytes read and written per second. `copy` is NumPy's copy of one warm array into
another. The kernels take turns; medians of 21 rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomm.cli.common.arguments import size
from jaxcomm.ffi import segments
from jaxcomm.report.tables import table

ROUNDS = 21
SEGMENT = 4096
BOUND = 0.1


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="16MiB,64MiB")
    rows = []
    for nbytes in map(size, parser.parse_args().sizes.split(",")):
        rows += measure(nbytes)
    print(table(["bytes", "pass", "ms", "GB/s", "of copy"], rows))


def measure(nbytes: int) -> list[list[str]]:
    """One row per kernel for gradients of this size."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(nbytes // 4), jnp.float32)
    other = np.empty_like(x)
    total = segments.count(x, SEGMENT)
    kept = jnp.asarray(np.sort(np.random.default_rng(1).permutation(total)[int(BOUND * total) :]), jnp.int32)
    keep = jnp.zeros(total).at[kept].set(1)
    importance = jax.jit(lambda x: segments.importance(x, SEGMENT))
    pack = jax.jit(lambda x: segments.pack(x, kept, SEGMENT))
    packed = pack(x)
    unpack = jax.jit(lambda packed: segments.unpack(packed, kept, x.size, SEGMENT))
    drop = jax.jit(lambda x: segments.scale(x, keep, SEGMENT), donate_argnums=0)
    dropped = jnp.array(x)

    def drop_in_place() -> None:
        nonlocal dropped
        dropped = jax.block_until_ready(drop(dropped))

    source = np.asarray(x)
    passes = {
        "copy": (lambda: np.copyto(other, source), 2 * nbytes),
        "importance": (lambda: jax.block_until_ready(importance(x)), nbytes),
        "pack": (lambda: jax.block_until_ready(pack(x)), 2 * packed.nbytes),
        "unpack": (lambda: jax.block_until_ready(unpack(packed)), packed.nbytes + nbytes),
        "drop, in place": (drop_in_place, nbytes - packed.nbytes),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(ROUNDS):
        for name, (run, _) in passes.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    rates = {name: moved / statistics.median(seconds[name]) for name, (_, moved) in passes.items()}
    return [
        [f"{nbytes >> 20} MiB", name, f"{1e3 * statistics.median(seconds[name]):.2f}", f"{rate / 1e9:.1f}",
         f"{rate / rates['copy']:.0%}"]
        for name, rate in rates.items()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
