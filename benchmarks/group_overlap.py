"""Overlap of group averages with the backward pass, between processes: by one call, and in buckets.

    jaxcomm launch -n 4 --transport tcp -- python benchmarks/group_overlap.py

Each process trains a perceptron and averages in pairs that change in every step (jaxcomm.train's divide_and_shuffle).
The two ways take turns, and process 0 prints the median time of a step. Further steps have marked gradients and
averages: process 0 prints the median milliseconds from the step's call until each layer's gradient and average are
ready. An average that is ready before the last gradient, that of layer 0, overlaps with the backward pass.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomm import train
from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.timing import Side, take_turns
from jaxcomm.collectives.buckets import in_backward
from jaxcomm.ffi import marks
from jaxcomm.report.tables import table

AVERAGED = 1000  # marks of averages are numbered from here, marks of gradients from 0
MARKED_STEPS = 10
RATE = 1e-3


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512, help="default 512: 1 MiB a layer")
    parser.add_argument("--batch", type=int, default=64, help="rows a worker")
    parser.add_argument("--rounds", type=int, default=8, help="of turns")
    args = parser.parse_args()
    jax.distributed.initialize()
    workers = jax.device_count()
    mesh = spmd.mesh(workers)
    own = np.random.default_rng(0).standard_normal((args.layers, 1, args.width, args.width), np.float32)
    params = [np.tile(layer / args.width**0.5, (workers, 1, 1)) for layer in own]
    batch = spmd.place(np.ones((workers, args.batch, args.width), np.float32), mesh, spmd.SPLIT)

    def compiled(nbytes: int | None, marked: bool) -> Side:
        average = train.divide_and_shuffle(pairs(workers), spmd.AXIS, bucket_bytes=nbytes)

        def step(params: Any, x: Any, number: Any) -> Any:
            weights = [layer[0] for layer in params]
            grads = jax.grad(lambda weights: loss(hooked(weights) if marked else weights, x[0]))(weights)
            updated = [layer - RATE * grad for layer, grad in zip(weights, grads, strict=True)]
            averaged = average(updated, number)
            if marked:
                averaged = [marks.mark(layer, AVERAGED + i) for i, layer in enumerate(averaged)]
            return [layer[None] for layer in averaged], number + 1

        specs = {"in_specs": (spmd.SPLIT, spmd.SPLIT, spmd.SAME), "out_specs": (spmd.SPLIT, spmd.SAME)}
        mapped = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs), donate_argnums=0)
        start = spmd.place(params, mesh, spmd.SPLIT), spmd.place(np.int32(0), mesh, spmd.SAME)
        return Side(lambda state: mapped(state[0], batch, state[1]), spmd.wait(start))

    ways = {"one call": None, "in buckets": 1}
    seconds = take_turns({name: compiled(nbytes, False) for name, nbytes in ways.items()}, args.rounds, lambda: None)
    rows = []
    for name, nbytes in ways.items():
        side = compiled(nbytes, True)
        side()
        found = [marks.record(side) for _ in range(MARKED_STEPS)]
        for first, what in ((0, "gradient"), (AVERAGED, "average")):
            times = [median_ms(found, first + i) for i in range(args.layers)]
            rows.append([name, f"{1e3 * statistics.median(seconds[name]):.1f}", what, *times])
    if jax.process_index() == 0:
        print(table(["way", "ms a step", "ms until", *(f"layer {i}" for i in range(args.layers))], rows))


def pairs(workers: int) -> list[list[list[int]]]:
    """Pairs of neighbours, then pairs of workers that are half of all workers apart."""
    half = workers // 2
    return [[[2 * i, 2 * i + 1] for i in range(half)], [[i, half + i] for i in range(half)]]


def loss(weights: Any, x: Any) -> Any:
    """The mean square of a perceptron's outputs."""
    for layer in weights:
        x = jnp.tanh(x @ layer)
    return jnp.mean(x * x)


def hooked(weights: list[Any]) -> list[Any]:
    """The weights, with hooks that mark their gradients with their layers' numbers."""

    def marking(number: int) -> Callable[[Any], Any]:
        return lambda grads: [marks.mark(grads[0], number)]

    return [in_backward([layer], lambda leaves: leaves, marking(i))[0] for i, layer in enumerate(weights)]


def median_ms(found: list[list[marks.Mark]], number: int) -> str:
    """The median milliseconds, over the steps, until this process reached the mark of this number."""
    times = [mark.seconds for step in found for mark in step if mark.number == number]
    return f"{1e3 * statistics.median(times):.1f}"


if __name__ == "__main__":
    main()
