"""The flags that all recipes have, and the loop that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from jax.sharding import Mesh

import jaxcomm
from common import devices, synchronisation, tolerance
from common.checkpoints import Checkpoints
from common.records import Records
from common.synchronisation import Synchronisation
from common.task import Task
from common.training import Training
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.train import Drop

SYNC = flags.DEFINE_enum("sync", "jaxcomm", synchronisation.NAMES, "how the workers come to agree")
_STEPS = flags.DEFINE_integer("steps", 200, "steps of the whole run", lower_bound=1)
_EVERY = flags.DEFINE_integer("every", 20, "steps from one measurement and checkpoint to the next", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "of the variables and the batches", lower_bound=0)
_OUT = flags.DEFINE_string("out", None, "folder for metrics and checkpoints, where a run goes on (runs/RECIPE-SYNC)")
_PLAN = flags.DEFINE_string("plan", None, "plan.json: schedules for the collectives, groups for ds-sync, drops for mlt")
_BOUND = flags.DEFINE_float(
    "bound", None, "mlt: share of each tensor that may be left out (the plan's, or 0.1)", 0, 0.99
)
_LOCAL = flags.DEFINE_integer(
    "local_steps", 8, "local-sgd, racks, outer-steps: steps from one average to the next", lower_bound=1
)


def main(recipe: Callable[[], None]) -> None:
    """Parses the flags and calls the recipe; a mistake of the user's is one message."""

    def guarded(argv: list[str]) -> None:
        del argv
        logging.set_verbosity(logging.ERROR)  # Orbax logs each of its steps, and that we wait for it
        try:
            recipe()
        except (JaxcommError, OSError) as error:
            raise SystemExit(f"error: {error}") from None

    app.run(guarded)


def out(name: str) -> Path:
    """The folder of a recipe's run."""
    return Path(_OUT.value or f"runs/{name}-{SYNC.value}")


def run(
    name: str,
    make: Callable[[str | None], Task],
    *,
    drop: Callable[[float], Drop] = Drop,
    own: Sequence[flags.FlagHolder[Any]] = (),
    plan: Callable[[int], Plan] | None = None,
    training: Callable[[Task, Synchronisation, Mesh], Training] = Training,
) -> None:
    """Runs a recipe as its flags say, from the start or from the latest checkpoint.

    Args:
      name: of the recipe.
      make: the task, given the mesh axis that its layers may sum over; None where workers have their own variables.
      drop: what "mlt" may leave out, given --bound; without it, a plan may say it.
      own: the recipe's own flags, which a run that goes on must have had, too.
      plan: makes the plan that runs without --plan, for a number of workers.
      training: makes what trains; it may do more between the steps, and measure more.
    """
    mesh = devices.mesh()
    chosen = jaxcomm.plan.load(_PLAN.value, ranks=mesh.size) if _PLAN.value else plan and plan(mesh.size)
    jaxcomm.init(mesh, plan=chosen)
    given = _given(drop, chosen, make) if SYNC.value == "mlt" else None
    how = synchronisation.by_name(SYNC.value, mesh.size, drop=given, every=_LOCAL.value, plan=chosen)
    trained = training(make(devices.AXIS if how.average is None else None), how, mesh)
    folder = out(name)
    settings = {flag.name: flag.value for flag in (SYNC, _SEED, _BOUND, _LOCAL, *own)}
    checkpoints = Checkpoints(folder, settings | {"recipe": name, "workers": mesh.size, "plan": chosen and chosen.hash})
    state = checkpoints.latest(trained.init(_SEED.value))
    done = int(state.step)
    devices.say(
        f"{name} on {mesh.size} {mesh.devices.flat[0].platform} workers by {SYNC.value}, from step {done}: {folder}"
    )
    records = Records(folder, done, _STEPS.value) if devices.is_first() else None
    while done < _STEPS.value:
        state, losses = trained.steps(state, min(_EVERY.value, _STEPS.value - done))
        done = int(state.step)
        metrics = {"loss": float(losses.mean())} | trained.score(state)
        if records is not None:
            records.add(done, metrics, trained.scalars())
        checkpoints.save(done, state)


def _given(drop: Callable[[float], Drop], plan: Plan | None, make: Callable[[str | None], Task]) -> Drop:
    """The part of gradients that "mlt" may leave out."""
    if _BOUND.value is not None or plan is None or plan.drops is None:
        return drop(0.1 if _BOUND.value is None else _BOUND.value)
    planned = Drop.of(plan)
    try:
        planned.check([layer.name for layer in tolerance.layers(make)])
    except ValueError as error:
        raise JaxcommError(f"{_PLAN.value}: {error}") from None
    return planned
