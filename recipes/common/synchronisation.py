"""How workers come to agree, by name: they average gradients before the optimizer, or parameters after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import lax

import jaxcomm
from common.devices import AXIS
from jaxcomm import planner, train
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.profile import Link, Profile, Provenance, Rack

NAMES = ("bsp", "jaxcomm", "mlt", "ds-sync", "local-sgd", "racks", "outer-steps", "gossip")

_MODEL_BYTES = 2**20  # at these links other sizes get the same groups


class Average(NamedTuple):
    """Averages the workers' variables, a dict of "params" and "state".

    `init` takes the variables, which are the same on all workers, and returns a state; `update` takes (variables, that
    state, step) and returns what this worker goes on with, and the state.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, jax.Array], tuple[Any, Any]]


@dataclass(frozen=True)
class Synchronisation:
    """The communication between workers in a step.

    Attributes:
      gradients: goes before the optimizer.
      average: comes after the optimizer; None: all workers have the same variables.
      planned: what library layers sum between the workers runs jaxcomm's plan, too (`jaxcomm.replace_lax`).
      groups: the plan whose groups `average` is over.
    """

    gradients: optax.GradientTransformation
    average: Average | None = None
    planned: bool = True
    groups: Plan | None = None


def by_name(
    name: str, workers: int, *, drop: train.Drop | None = None, every: int = 8, plan: Plan | None = None
) -> Synchronisation:
    """One of `NAMES`.

    Args:
      name: "bsp" averages gradients by `lax.pmean`, "jaxcomm" by `jaxcomm.pmean` with the active plan, "mlt" without
        what `drop` leaves out. "ds-sync" averages variables within groups, "local-sgd" over all workers after `every`
        steps, "racks" besides gradients within each of two racks, "outer-steps" then gives what they moved to an outer
        optimizer (DiLoCo), "gossip" averages in pairs.
      workers: how many there are.
      drop: of "mlt"; None is `train.Drop()`.
      every: steps of "local-sgd", "racks" and "outer-steps" from one average to the next.
      plan: whose groups "ds-sync" takes; None plans groups for two racks.
    """
    match name:
        case "bsp":
            return Synchronisation(_mean(lax.pmean), planned=False)
        case "jaxcomm":
            return Synchronisation(_mean(jaxcomm.pmean))
        case "mlt":
            return Synchronisation(train.bounded_drop(AXIS, drop))
        case "ds-sync":
            plan = plan or two_racks(workers)
            if plan.groups is None:
                raise JaxcommError(
                    "the plan has no groups, which ds-sync averages over.\n  Cure: give its profile racks, as by "
                    "`jaxcomm plan profile.json --racks 4+4 --uplink 4 --model-bytes 1MiB`."
                )
            return replace(_averaging(train.divide_and_shuffle(plan, AXIS)), groups=plan)
        case "local-sgd":
            return _averaging(train.local_sgd(every, AXIS))
        case "racks":
            if workers < 2 or workers % 2:
                raise JaxcommError(f"there are {workers} workers; --sync racks halves them, so it takes an even number")
            halves = [[*range(workers // 2)], [*range(workers // 2, workers)]]
            own = _mean(partial(jaxcomm.pmean, axis_index_groups=halves))
            return replace(_averaging(train.local_sgd(every, AXIS)), gradients=own)
        case "outer-steps":
            return Synchronisation(optax.identity(), _outer_steps(every))
        case "gossip":
            return _averaging(train.exponential_gossip(workers, AXIS))
    raise JaxcommError(f"there is no synchronisation {name!r}; there are {', '.join(NAMES)}")


def two_racks(workers: int, nbytes: int = _MODEL_BYTES, gbit_s: float = 20.0) -> Plan:
    """A plan for workers in two racks of one size, between which a byte takes four times as long as within.

    Args:
      workers: even, at least 4.
      nbytes: of the model.
      gbit_s: of a worker's link; 20 as in section V of the paper on DS-Sync.
    """
    if workers < 4 or workers % 2:
        raise JaxcommError(f"there are {workers} workers; two racks take an even number of at least 4")
    half = workers // 2
    racks = [
        Rack(name=f"rack {i}", ranks=list(range(first, first + half)), uplink=4.0) for i, first in enumerate((0, half))
    ]
    cluster = Profile(
        ranks=workers,
        link=Link(alpha_s=5e-5, beta_s_per_byte=8e-9 / gbit_s, source=f"{gbit_s:g} Gbit/s Ethernet"),
        racks=racks,
        collective={"bytes": nbytes, "seconds": 1e-3},
        provenance=Provenance(source="two racks, made up", tool="recipes"),
    )
    return planner.plan(cluster)


def _mean(pmean: Callable[[Any, str], Any]) -> optax.GradientTransformation:
    return optax.stateless(lambda gradients, params: pmean(gradients, AXIS))


def _averaging(average: Callable[[Any, jax.Array], Any]) -> Synchronisation:
    return Synchronisation(
        optax.identity(), Average(lambda _: (), lambda variables, state, step: (average(variables, step), state))
    )


def _outer_steps(every: int) -> Average:
    """The parameters by DiLoCo's outer optimizer; the layers' own state, which has no gradient, by its mean."""
    outer = train.outer_steps(every, optax.sgd(0.7, momentum=0.9, nesterov=True), AXIS)
    mean = train.local_sgd(every, AXIS)

    def update(variables: Any, state: Any, step: jax.Array) -> tuple[Any, Any]:
        params, state = outer.update(variables["params"], state, step)
        return {"params": params, "state": mean(variables["state"], step)}, state

    return Average(lambda variables: outer.init(variables["params"]), update)
