"""DS-Sync on two racks: workers average in small groups, of which one at a time uses the slow uplink between the racks.

    python recipes/two_racks.py
    python recipes/two_racks.py --contend 6
    python recipes/two_racks.py --plan plan.json

The task is handwritten digits; each worker has its own parameters. Without --plan the racks are made up: half of the
workers each, links of 1 Gbit/s, and four times the time for a byte from rack to rack. With --contend another job shares
that worker's link from step --contend_from on, so that the worker comes late to its averages. The statistics of the run
show it, and the groups change: they are data, so nothing is compiled again, and checkpoints hold them.

Each line shows how far the workers are `apart`; what of that is left, `settled`, if they only average a few times more,
and what ρ of these averages lets it be `at_most`; the milliseconds that a step's network takes by prediction, in groups
(`groups_ms`) and by the fastest allreduce (`allreduce_ms`); and `measured_ms`, the median time of these steps' averages
by the run's statistics, from the last arrival in a group to the end, of the slowest group. The prediction is for the
links of the plan's racks, the measurement of the run's own links: within a process, its memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from common import devices

devices.prepare()

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcomm
from common import recipe, synchronisation
from common.devices import AXIS
from common.digits import digits
from common.synchronisation import Average, Synchronisation
from common.task import Task
from common.training import State, Training
from jaxcomm import ffi, train
from jaxcomm.errors import JaxcommError
from jaxcomm.plan.consensus import contraction
from jaxcomm.plan.groups import GroupCosts, Groups
from jaxcomm.planner.groups import on
from jaxcomm.train.adjustment import ENOUGH

CONTEND = flags.DEFINE_integer("contend", None, "worker whose link another job shares", lower_bound=0)
CONTEND_FROM = flags.DEFINE_integer("contend_from", 100, "step from which on it does", lower_bound=0)

UNITS = 256  # of each of two layers: a model of 0.33 MiB
BUSY = 20.0  # times as long as before takes a byte through that worker's link
SETTLED = 0.1  # as many averages more as leave at most this share of the distance
ROUNDED = 1e-4  # of the distance: what is left where ρ is 0, as parameters are rounded


class TwoRacks(Training):
    """A training by divide and shuffle, whose groups are part of each worker's state."""

    def __init__(self, task: Task, how: Synchronisation, mesh: Mesh) -> None:
        """As its base, for `how` with a plan's groups."""
        assert how.groups is not None and how.groups.groups is not None
        self._plan, self._groups = how.groups, how.groups.groups
        if CONTEND.value is not None and CONTEND.value >= mesh.size:
            raise JaxcommError(f"--contend is {CONTEND.value}; the workers are 0 to {mesh.size - 1}")
        self._adjustment: train.Adjustment | None = None
        self._measured = dict[str, float]()
        average = train.divide_and_shuffle(self._plan, AXIS)
        longer_s = (BUSY - 1) * self._groups.bytes * self._plan.assumptions.beta_s_per_byte

        def update(variables: Any, table: jax.Array, step: jax.Array) -> tuple[Any, jax.Array]:
            if CONTEND.value is not None:
                late = (lax.axis_index(AXIS) == CONTEND.value) & (step >= CONTEND_FROM.value)
                variables = ffi.delay(variables, jnp.where(late, longer_s, 0.0))
            return average(variables, step, table), table

        table = train.group_table(self._plan)
        super().__init__(task, replace(how, average=Average(lambda _: jnp.asarray(table), update)), mesh)

        def settle(params: Any, table: jax.Array, step: jax.Array, count: jax.Array) -> jax.Array:
            params, table = jax.tree.map(lambda leaf: leaf[0], (params, table))
            params = lax.fori_loop(step, step + count, lambda t, params: average(params, t, table), params)
            return train.consensus_distance(params, AXIS)

        specs = {"in_specs": (P(AXIS), P(AXIS), P(), P()), "out_specs": P()}
        self._settle = jax.jit(jax.shard_map(settle, mesh=mesh, check_vma=False, **specs))
        self._networks = [self._network(slowness) for slowness in (1.0, BUSY)]

    def steps(self, state: State, count: int) -> tuple[State, jax.Array]:
        """As its base; then the groups follow what these steps' statistics say, if a link may get busy."""
        jaxcomm.reset_stats()
        state, losses = jax.block_until_ready(super().steps(state, count))
        self._measured = measured_ms(jaxcomm.stats())
        if CONTEND.value is None:
            return state, losses
        present = self._adjustment or self._present(state)
        found = self._adjustment = train.adjust_groups(self._plan, present, steps=max(count, ENOUGH))
        done = int(state.step)
        if found.changed or done - count <= CONTEND_FROM.value < done:
            devices.say(f"step {done}: {found.reason}")
        if found.changed:
            state = state.with_average(found.table)
        return state, losses

    def score(self, state: State) -> dict[str, float]:
        """As its base, with the columns that the recipe's docstring explains; those of the network in milliseconds."""
        found = super().score(state)
        step, groups = int(state.step), self._present(state)
        coming = itertools.islice(itertools.cycle(groups.iterations), step % groups.period, None)
        averages = [next(coming)]
        while (rho := contraction(averages, len(groups.nics))) > SETTLED:
            averages.append(next(coming))
        params = state.worker.variables["params"]
        settled = self._settle(params, state.worker.average, jnp.int32(step), jnp.int32(len(averages)))
        links, allreduce_s = self._networks[step > CONTEND_FROM.value]
        return found | {
            "settled": float(settled),
            "at_most": max(rho, ROUNDED) * found["apart"],
            "groups_ms": 1e3 * float(np.mean([links.seconds(iteration) for iteration in groups.iterations])),
            "allreduce_ms": 1e3 * allreduce_s,
            **self._measured,
        }

    def _network(self, slowness: float) -> tuple[GroupCosts, float]:
        """The plan's, with so slow a link of the worker that shares it, and what the fastest allreduce takes on it."""
        nics = [nic * (slowness if worker == CONTEND.value else 1) for worker, nic in enumerate(self._groups.nics)]
        assumed = self._plan.assumptions
        links = GroupCosts(self._groups.racks, nics, self._groups.bytes, assumed.alpha_s, assumed.beta_s_per_byte)
        known = on(links).baselines
        return links, min(known.ps, known.ring, known.double_tree, known.hierarchical)

    def _present(self, state: State) -> Groups:
        """The plan's groups, or those that took their place."""
        table = np.asarray(state.worker.average.addressable_shards[0].data[0])
        rows = [row for row in table if row[0] >= 0]
        iterations = tuple(tuple(tuple(np.flatnonzero(row == i).tolist()) for i in range(max(row) + 1)) for row in rows)
        rho = contraction(iterations, len(self._groups.nics))
        return self._groups.model_copy(update={"iterations": iterations, "rho": rho})


def measured_ms(sites: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median time of the averages in groups, from the last arrival on; empty where no statistics are kept."""
    in_groups = [site for site in sites if site["plan"] == "groups" and site["after_arrival_s"]]
    if not in_groups:
        return {}
    largest = max(in_groups, key=lambda site: site["bytes"])
    return {"measured_ms": 1e3 * median(largest["after_arrival_s"])}


def main() -> None:
    """Runs the recipe; without --plan by one for the model's size."""
    task = digits(UNITS)
    model = jax.eval_shape(task.init, jax.random.key(0))
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(model))
    plan = partial(synchronisation.two_racks, nbytes=nbytes, gbit_s=1.0)
    recipe.run("two_racks", lambda _: task, own=(CONTEND, CONTEND_FROM), plan=plan, training=TwoRacks)


if __name__ == "__main__":
    flags.set_default(recipe.SYNC, "ds-sync")
    flags.register_validator("sync", lambda sync: sync == "ds-sync", "it must be ds-sync here")
    flags.register_multi_flags_validator(
        ["contend", "every"],
        lambda given: given["contend"] is None or given["every"] >= ENOUGH,
        f"with --contend, --every must be at least {ENOUGH}: fewer steps do not show who is late",
    )
    recipe.main(main)
