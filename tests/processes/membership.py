"""A training of four processes that goes on with those that are left when two die, one after the other, amid steps.

Words: a seed, which says who dies and when, and "auto" for plans that the run makes. Arrays have the same shapes over
all meshes, as where a batch of one size is shared out among fewer. Before it goes on without one, a process takes from
the first one, which lives, how far that is, and what it has.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

import jaxcomm
from tests.processes import jobs

ROWS, COLUMNS = 12, 1 << 16
STEPS, AHEAD = 24, 4  # of the last ones, and how many are launched before one is awaited
SUMS = np.arange(COLUMNS) % 7


def batch(step: int) -> NDArray[np.float32]:
    """Whole numbers, whose sums are exact."""
    return np.broadcast_to((step + SUMS) % 5, (ROWS, COLUMNS)).astype(np.float32)


class Training:
    """Its steps over the devices of some processes."""

    def __init__(self, processes: list[int]) -> None:
        self.mesh = Mesh(np.array([jax.devices()[process] for process in processes]), ("data",))
        mapped: Callable[..., Any] = jax.shard_map
        specs = {"mesh": self.mesh, "in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
        self.step = jax.jit(mapped(self._step, **specs))
        self.share = jax.jit(mapped(self._share, **specs | {"in_specs": P()}))

    def _step(self, params: jax.Array, rows: jax.Array) -> jax.Array:
        own = rows.sum(0)
        mean = jaxcomm.pmean(own[:8], "data")  # a small call before the large one
        return params + jaxcomm.psum(own, "data") + 0 * mean.sum()

    def _share(self, state: jax.Array) -> jax.Array:
        return jaxcomm.psum(jnp.where(jax.lax.axis_index("data") == 0, state, 0), "data")

    def put(self, value: NDArray[Any], spec: P) -> jax.Array:
        """Needs no other process, as `jax.device_put` may."""
        return jax.make_array_from_callback(value.shape, NamedSharding(self.mesh, spec), lambda index: value[index])


def of_first(training: Training, value: NDArray[Any]) -> NDArray[Any]:
    """The first process's membership."""
    return np.asarray(training.share(training.put(value, P())).addressable_data(0))


def run(
    training: Training, params: NDArray[np.float32], step: int, until: float = math.inf, dies_at: int = -1
) -> tuple[tuple[NDArray[np.float32], int], str]:
    """Steps on from this one, until a number or an error: the last result, and the error."""
    kept = params, step
    try:
        with jaxcomm.errors.translated():
            while step < until:
                now = training.put(kept[0], P())
                for _ in range(AHEAD):
                    now = training.step(now, training.put(batch(step), P("data")))
                    if step == dies_at:
                        threading.Thread(target=die).start()
                    step += 1
                kept = np.asarray(now.addressable_data(0)), step
    except jaxcomm.JaxcommError as error:
        return kept, str(error)
    return kept, ""


def die() -> None:
    time.sleep(random.uniform(0, 0.02))
    jobs.report("dies", at=time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def main(seed: int, plan: str = "") -> None:
    dice = random.Random(seed)
    jax.distributed.initialize()
    atexit.register(os._exit, 0)  # without JAX's own wait for all processes at the end
    me, left = jax.process_index(), [0, 1, 2, 3]
    training, kept = Training(left), (np.zeros(COLUMNS, np.float32), 0)
    if plan:
        jaxcomm.init(plan=plan)
    for victim in dice.sample([1, 2, 3], 2):
        dies_at = kept[1] + dice.randrange(STEPS)
        kept, error = run(training, *kept, dies_at=dies_at if me == victim else -1)
        found = time.time()
        # Over the devices that it had before; unequally often, as processes may try.
        errors = [error, *(run(training, *kept)[1] for _ in range(1 + me))]
        jobs.report(f"loss of {victim}", rank=left.index(victim), errors=errors, at=found, again=time.time())
        left.remove(victim)
        training = Training(left)
        if plan:
            jaxcomm.init(training.mesh, plan=plan)
        kept = of_first(training, kept[0]), int(of_first(training, np.int32(kept[1])))
        gone = [[each["process"], each["has_left"]] for each in jaxcomm.stats().gone]
        jobs.report(f"without {victim}", right=is_right(*kept), gone=gone)
    kept, error = run(training, *kept, until=kept[1] + STEPS)
    digest = hashlib.sha256(kept[0].tobytes()).hexdigest()
    jobs.report("end", error=error, right=is_right(*kept), steps=kept[1], digest=digest)
    jobs.report("plans", outcomes=[event["outcome"] for event in jaxcomm.stats().events])
    until = time.monotonic() + 60
    while me == 0 and len(jaxcomm.stats().gone) < 3 and time.monotonic() < until:
        time.sleep(0.01)  # JAX's coordination service, which lives here, would end the others as it ends


def is_right(params: NDArray[np.float32], steps: int) -> bool:
    expected = sum((batch(step).sum(0) for step in range(steps)), np.zeros(COLUMNS, np.float32))
    return bool((params == expected).all())


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
