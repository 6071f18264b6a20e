"""A program for four processes, in which the last one makes mistakes that all of them survive.

Words: a plan for four ranks, and the seconds of the deadline of a call amid which a rank is stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed import store
from jaxcomm.errors import DeadlineError, MismatchError
from tests.processes import jobs

SHORT_S, LONG_S = 2.0, 60.0
Body = Callable[[Any], Any]


class Job:
    """All cases in each process; the last process acts otherwise than the rest."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        self.rank, self.ranks = jax.process_index(), jax.process_count()
        self.errs = self.rank == self.ranks - 1
        self.mesh = Mesh(np.array(jax.devices()), ("d",))

    def array(self, elements: int = 4, dtype: Any = np.float32) -> jax.Array:
        """So many ones for each rank."""
        full = np.ones(self.ranks * elements, dtype)
        return jax.make_array_from_callback(full.shape, NamedSharding(self.mesh, P("d")), lambda index: full[index])

    def step(self, body: Body) -> Any:
        return jax.jit(jax.shard_map(body, mesh=self.mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    def case(self, name: str, act: Callable[[], Any], deadline_s: float = LONG_S) -> None:
        """Reports the error that comes of the act, and whether the next call works."""
        multihost_utils.sync_global_devices(f"{name} begins")
        jaxcomm.init(deadline_s=deadline_s)
        found: dict[str, Any] = {"error": "", "type": ""}
        try:
            with jaxcomm.errors.translated():
                jax.block_until_ready(act())
        except Exception as error:
            found = {"error": str(error), "type": type(error).__name__}
            if isinstance(error, DeadlineError):
                found |= {"missing": error.missing, "waiting": error.waiting, "seconds": error.seconds}
            if isinstance(error, MismatchError):
                found |= {"calls": sorted(error.calls)}
        multihost_utils.sync_global_devices(f"{name} ends")
        jaxcomm.init(deadline_s=LONG_S)
        total = np.asarray(self.total(self.array()).addressable_shards[0].data)
        jobs.report(name, **found, usable=bool((total == self.ranks).all()))

    @staticmethod
    def _sum(x: Any) -> Any:
        return jaxcomm.psum(x, "d")

    def total(self, x: Any) -> Any:
        return self.step(self._sum)(x)

    # The mistakes.

    def nobody(self) -> Any:
        return self.total(self.array())

    def other_operand_shape(self) -> Any:
        return self.step(lambda x: jaxcomm.psum(x, "d") * 5)(self.array(5 if self.errs else 4))

    def other_operand_dtype(self) -> Any:
        dtype = np.int32 if self.errs else np.float32
        return self.step(lambda x: jaxcomm.psum(x, "d") * 7)(self.array(dtype=dtype))

    def other_shape(self) -> Any:
        return self.step(lambda x: _one(jaxcomm.psum(x[: 2 if self.errs else 4], "d")))(self.array())

    def other_dtype(self) -> Any:
        dtype = jnp.int8 if self.errs else jnp.float32
        return self.step(lambda x: _one(jaxcomm.psum(x.astype(dtype), "d")))(self.array())

    def other_reduction(self) -> Any:
        return self.step(lambda x: (jaxcomm.pmax if self.errs else jaxcomm.psum)(x, "d"))(self.array())

    def other_collective(self) -> Any:
        collective = jaxcomm.all_gather if self.errs else jaxcomm.psum_scatter
        return self.step(lambda x: _one(collective(x, "d")))(self.array())

    def other_plan(self) -> Any:
        with jaxcomm.use_plan(self.plan if self.errs else None):
            return self.step(lambda x: jaxcomm.psum(x, "d"))(self.array(1 << 16))

    def one_call_more(self) -> Any:
        return self.step(lambda x: self._sum(self._sum(x) if self.errs else x))(self.array())

    def one_launch_more(self) -> Any:
        if self.errs:
            jax.block_until_ready(self.step(lambda x: _one(jaxcomm.pmax(x.sum(), "d")))(self.array()))
        return self.total(self.array())

    # Steps that differ, but not in their calls.

    def other_name(self) -> Any:
        def step(x: Any) -> Any:
            return self._sum(x)

        step.__name__ = f"step_of_{self.rank}"
        return self.right(self.step(step)(self.array()))

    def other_line(self) -> Any:
        one, other = (lambda x: jaxcomm.psum(x, "d")), (lambda x: jaxcomm.psum(x, axis_name=("d",)))
        return self.right(self.step(one if self.errs else other)(self.array()))

    def one_output_more(self) -> Any:
        def step(x: Any) -> Any:
            return (self._sum(x), x.max()[None]) if self.errs else self._sum(x)

        found = self.step(step)(self.array())
        return self.right(found[0] if self.errs else found)

    def other_elements(self) -> Any:
        """A last batch that has another size on one process."""
        x = self.array(5 if self.errs else 4)
        return self.right(self.step(lambda x: self._sum(jnp.ones(4) * x[0]))(x))

    def right(self, total: Any) -> Any:
        assert (np.asarray(total.addressable_shards[0].data) == self.ranks).all()
        return total

    def other_order(self) -> Any:
        one, other = self.step(lambda x: jaxcomm.psum(x, "d")), self.step(lambda x: jaxcomm.pmax(x, "d"))
        x = self.array()
        for step in (other, one) if self.errs else (one, other):
            jax.block_until_ready(step(x))

    def never_comes(self) -> Any:
        step, x = self.step(lambda x: jaxcomm.psum(x, "d") * 2), self.array()
        step.lower(x).compile()
        if self.errs:
            store.lookup_all({other: f"without/{other}" for other in range(self.ranks - 1)}, _for_ever())
            return step(x)
        try:
            jax.block_until_ready(step(x))
        finally:
            store.publish(f"without/{self.rank}", "")

    def fails_in_python(self) -> Any:
        step, x = self.step(lambda x: jaxcomm.psum(x, "d") * 3), self.array()
        step.lower(x).compile()
        if self.errs:
            raise ValueError("a bug of the user's")
        return step(x)

    def is_stopped(self, elements: int) -> Callable[[], Any]:
        """The last process is stopped in a call until all others have their error."""

        def act() -> Any:
            step, x = self.step(lambda x: jaxcomm.psum(x, "d") / 2), self.array(elements)
            step.lower(x).compile()
            if self.errs:
                found = step(x) if elements > 4 else None
                store.publish(f"stopped/{elements}/pid", str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                late = step(x) if found is None else found
                assert (np.asarray(late.addressable_shards[0].data) == self.ranks / 2).all()
                return late
            pid = int(store.lookup_all({0: f"stopped/{elements}/pid"}, _for_ever())[0][0])
            try:
                return jax.block_until_ready(step(x))
            finally:
                store.publish(f"stopped/{elements}/{self.rank}", "")
                if self.rank == 0:
                    names = {other: f"stopped/{elements}/{other}" for other in range(1, self.ranks - 1)}
                    store.lookup_all(names, _for_ever())
                    os.kill(pid, signal.SIGCONT)

        return act


def _one(x: Any) -> Any:
    """Makes the results' types the same, whatever the collective's."""
    return jnp.sum(x.astype(jnp.float32))[None]


def _for_ever() -> float:
    return time.monotonic() + 100


def main(plan: str, amid_s: str) -> None:
    jax.distributed.initialize()
    job = Job(plan)
    if job.errs:  # it comes to the first call when the others are on their way there
        store.lookup_all({other: f"first/{other}" for other in range(job.ranks - 1)}, _for_ever())
    store.publish(f"first/{job.rank}", "")
    job.case("late joiner", job.nobody)
    at_once = [
        job.other_shape,
        job.other_dtype,
        job.other_reduction,
        job.other_collective,
        job.other_plan,
        job.other_order,
        job.other_operand_shape,
        job.other_operand_dtype,
        job.one_call_more,
        job.one_launch_more,
        job.other_name,
        job.other_line,
        job.one_output_more,
        job.other_elements,
    ]
    late = [job.never_comes, job.fails_in_python]
    for act in at_once + late:
        job.case(act.__name__.replace("_", " "), act, SHORT_S if act in late else LONG_S)
    job.case("is stopped", job.is_stopped(4), SHORT_S)
    job.case("is stopped amid a large call", job.is_stopped(4 << 20), float(amid_s))
    jaxcomm.reset_stats()
    for _ in range(5):
        jax.block_until_ready(job.total(job.array()))
    jobs.report("statistics", sites=[*jaxcomm.stats()])


if __name__ == "__main__":
    main(*sys.argv[1:])
