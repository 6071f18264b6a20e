"""The program of `benchmarks/elastic.py`: trains in blocks, checks every sum, and rejoins when it is started again.

Words: "jaxcomm" or "unchanged" (collectives of `jax.lax`), MiB of state, and a file whose existence ends the training.
Each event is a line of JSON with the time on the clock that all processes of the machine share.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.multihost_utils import ProcessFailureError, live_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcomm

MARK = "@event "
STEPS = 5  # of a block
RANKS, WHOLE = PartitionSpec("data"), PartitionSpec()


def say(kind: str, **about: Any) -> None:
    """Prints an event."""
    print(f"{MARK}{json.dumps({'kind': kind, 'at': time.monotonic(), 'pid': os.getpid(), **about})}", flush=True)


@functools.cache
def over(way: str, *devices: Any) -> tuple[Mesh, Any, Any]:
    """A mesh of these devices, a training step, and a step that calls every kind of collective."""
    mesh, ranks = Mesh(np.array(devices), ("data",)), len(devices)
    psum = jaxcomm.psum if way == "jaxcomm" else lax.psum

    def train(state, factor, own):
        return state + psum(factor * own, "data")

    def kinds(x):
        shifted = lax.ppermute(x, "data", [(rank, (rank + 1) % ranks) for rank in range(ranks)])
        swapped = lax.all_to_all(jnp.tile(x, ranks), "data", 0, 0, tiled=True)
        scattered = lax.psum_scatter(jnp.arange(ranks) + 0 * x[0], "data", tiled=True)
        gathered = lax.all_gather(x, "data", tiled=True)
        return shifted, swapped, scattered, gathered.sum()[None], lax.pmax(x, "data")

    def on_all(body, specs, out):
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))

    return mesh, on_all(train, (WHOLE, WHOLE, RANKS), WHOLE), on_all(kinds, RANKS, RANKS)


def put(values: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """The values, which all processes have, as an array over the mesh."""
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])


def expect(what: str, found: Any, wanted: Any) -> None:
    """Ends the process with an event if a result is wrong."""
    if not np.array_equal(found, wanted):
        say("wrong", what=what, found=str(found)[:200], wanted=str(wanted)[:200])
        os._exit(3)


def check_kinds(kinds: Any, mesh: Mesh, devices: Sequence[Any]) -> None:
    """Runs every kind of collective once, and checks the ranks of this process."""
    ranks, numbers = len(devices), np.arange(10, 10 + len(devices), dtype=np.int32)
    found = [
        [
            np.asarray(shard.data)
            for shard in sorted(each.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        ]
        for each in kinds(put(numbers, mesh, RANKS))
    ]
    here = [rank for rank, device in enumerate(devices) if device.process_index == jax.process_index()]
    wanted = {
        "ppermute": [numbers[[(rank - 1) % ranks]] for rank in here],
        "all_to_all": [numbers for _ in here],
        "psum_scatter": [np.array([rank * ranks]) for rank in here],
        "all_gather": [numbers[None].sum(1) for _ in here],
        "pmax": [numbers[-1:] for _ in here],
    }
    for name, ours in zip(wanted, found, strict=True):
        expect(name, ours, wanted[name])


def main(way: str, state_mib: int, end_file: str) -> None:
    """Trains until the file exists."""
    say("imported")
    jax.distributed.initialize()
    jaxcomm.init()
    say("initialized")
    state, step = np.zeros(state_mib << 18, np.float32), 0
    ends = False
    while not ends:
        began = time.monotonic()
        try:
            with live_devices(jax.devices()) as devices:
                mesh, train, kinds = over(way, *devices)
                before, called = step, time.monotonic()
                step, state = jaxcomm.elastic.catch_up(step, state)
                if step != before:
                    say("caught up", step=step, seconds=time.monotonic() - called)
                if way == "unchanged":
                    check_kinds(kinds, mesh, devices)
                own = np.array([device.process_index + 1 for device in devices], np.float32)
                now = put(state, mesh, WHOLE)
                for number in range(step, step + STEPS):
                    now = train(now, put(np.float32(number % 7), mesh, WHOLE), put(own, mesh, RANKS))
                ends_here = put(np.full(len(devices), os.path.exists(end_file), np.float32), mesh, RANKS)
                votes = train(put(np.float32(0), mesh, WHOLE), put(np.float32(1), mesh, WHOLE), ends_here)
                now, votes = (np.asarray(each.addressable_data(0)) for each in (now, votes))
                factors = sum(number % 7 for number in range(step, step + STEPS))
                expect("psum", now, state + factors * own.sum())
        except ProcessFailureError as error:
            say("failed", seconds=time.monotonic() - began, cause=str(error.__cause__)[:300])
        else:
            state, step, ends = now, step + STEPS, bool(votes.any())
            members = sorted({device.process_index for device in devices})
            say("block", step=step, members=members, seconds=time.monotonic() - began)
            time.sleep(0.02)
    say("end", step=step, generations=jaxcomm.stats().generations)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
