"""Straggler-aware data parallelism: a worker that is late in every step, found and planned for in the run.

    python recipes/late_rank.py
    python recipes/late_rank.py --late rank=5,ms=40
    jaxcomm testbed run late_host.toml -- recipes/late_rank.py

The task is handwritten digits; one worker's gradients come late. The first --plan_at steps run without a plan, and
`jaxcomm.stats()` says who arrives when at the sum of the gradients, and what the sums take. From that comes a profile,
from the profile a plan, and the training goes on under the plan. Each line shows how late the late worker is
after the next one (`late_ms`), how long the sum takes after its arrival (`after_ms`), and the whole step (`step_ms`):
medians of the steps since the line before. On a machine that does something else as well, they say more about that.

In a testbed the file's `delay_s` takes the place of --late: a host's process sleeps as long before
each of its steps.
"""

from __future__ import annotations

import csv
import os
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import devices

devices.prepare()

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from jax import lax
from jax.sharding import Mesh

import jaxcomm
from common import recipe
from common.devices import AXIS
from common.digits import digits
from common.synchronisation import Synchronisation
from common.task import Task
from common.training import State, Training
from jaxcomm import ffi, planner, profile
from jaxcomm.cli.common import arguments
from jaxcomm.cli.common.arguments import Late
from jaxcomm.errors import JaxcommError
from jaxcomm.report.words import nobody_late_text

LATE = flags.DEFINE_string("late", "rank=1,ms=20", "the worker that is late, and by how many milliseconds")
UNITS = flags.DEFINE_integer("units", 2048, "of each of two layers; 2048 make a gradient of 16.6 MiB", lower_bound=1)
PLAN_AT = flags.DEFINE_integer("plan_at", 100, "steps after which the run makes its plan", lower_bound=1)

COMPARED = 20  # steps that are taken both ways
_TESTBED_DELAY_S = "JAXCOMM_TESTBED_DELAY_S"  # in every process of a testbed


class Watched(Training):
    """A training that looks at who is late in it, makes a plan of that, and goes on under the plan."""

    def __init__(self, task: Task, how: Synchronisation, mesh: Mesh, *, folder: Path) -> None:
        """As its base; the plan is `folder`/plan.json, where a run that is taken up again finds it."""
        rank, late_s = parsed_late(LATE.value)
        if rank >= mesh.size:
            raise JaxcommError(f"--late is {LATE.value}; the workers are 0 to {mesh.size - 1}")
        if _TESTBED_DELAY_S in os.environ:
            late_s = 0.0
        self._sleep_s = float(os.environ.get(_TESTBED_DELAY_S, "0"))

        def late(gradients: Any, params: Any) -> Any:
            del params
            return ffi.delay(gradients, jnp.where(lax.axis_index(AXIS) == rank, late_s, 0.0))

        jaxcomm.init(trial=False)  # it compares the steps without and with the plan itself
        super().__init__(task, replace(how, gradients=optax.chain(optax.stateless(late), how.gradients)), mesh)
        self._workers, self._folder, self._seen = mesh.size, folder, dict[str, float]()
        self._scalars = dict[str, float]()

    def steps(self, state: State, count: int) -> tuple[State, jax.Array]:
        """As its base, step by step, without a plan or under it; makes it at the end of the last steps without."""
        done = int(state.step)
        path = self._folder / "plan.json"
        plan = jaxcomm.plan.load(path, ranks=self._workers) if done >= PLAN_AT.value and path.exists() else None
        losses, seconds = [], []
        with jaxcomm.use_plan(plan):
            for _ in range(count):
                start = time.perf_counter()
                state, loss = self._one_step(state)
                seconds.append(time.perf_counter() - start)
                losses.append(loss)
        self._seen = {"planned": float(plan is not None), "step_ms": 1e3 * median(seconds)}
        if sites := [site for site in jaxcomm.stats() if site["calls"]]:
            site = of_gradients(sites)
            self._seen |= dict(zip(("late_ms", "after_ms"), lateness_ms(site), strict=True))
            if plan is None and done + count >= PLAN_AT.value:
                made = devices.is_first() and not path.exists() and self._plan(site, path)
                if devices.from_first(made):
                    self._compare(state, path)
        elif done < PLAN_AT.value <= done + count:
            devices.say("nothing here keeps statistics of sums, so there is nothing to plan from: it goes on as before")
        self._scalars = jaxcomm.metrics.scalars()
        jaxcomm.reset_stats()
        return state, jnp.concatenate(losses)

    def scalars(self) -> dict[str, float]:
        """As its base, of the latest steps."""
        return self._scalars

    def score(self, state: State) -> dict[str, float]:
        """As its base, with what the latest steps showed."""
        return super().score(state) | self._seen

    def _one_step(self, state: State) -> tuple[State, jax.Array]:
        """One step, to which a testbed's late host comes late."""
        time.sleep(self._sleep_s)
        return jax.block_until_ready(super().steps(state, 1))

    def _plan(self, site: dict[str, Any], path: Path) -> bool:
        """Profile and plan of what the run has recorded in the first process; False if nobody is late."""
        found = profile.from_stats()
        profile.save(found, path.with_name("profile.json"))
        late = profile.find_straggler(found)
        if not late.is_late:
            print(f"{nobody_late_text(f'worker {late.rank}', late, self._workers)}: it goes on without a plan")
            return False
        plan = planner.plan(found)
        jaxcomm.plan.save(plan, path)
        schedule = plan.schedule_for(site["bytes"])
        assert schedule is not None  # without a type a plan has a schedule for every size
        behind = f"in {late.late_steps} of {late.steps} steps, by {1e3 * late.median_s:.1f} ms (median)"
        print(f"worker {late.rank} comes last {behind}")
        print(f"{path}: for {site['bytes'] / 2**20:.1f} MiB {schedule.kind}, {schedule.num_chunks} chunks")
        return True

    def _compare(self, state: State, path: Path) -> None:
        """Takes the same steps without and with the plan, in turns, from copies of the state."""
        made = jaxcomm.plan.load(path)
        plans = {"without the plan": None, "under it": made}
        states, losses = {name: jax.tree.map(jnp.copy, state) for name in plans}, {}
        jaxcomm.reset_stats()
        for _ in range(COMPARED):
            for name, plan in plans.items():
                with jaxcomm.use_plan(plan):
                    states[name], [losses[name]] = self._one_step(states[name])
        sites = without_and_under([site for site in jaxcomm.stats() if site["calls"]], made.hash[:8])
        devices.say(f"the next {COMPARED} steps both ways, in turns:")
        for name, site in zip(plans, sites, strict=True):
            _, after_ms = lateness_ms(site)
            sum_ = f"the sum of {site['bytes'] / 2**20:.1f} MiB ({site['plan']})"
            devices.say(f"  {name:<17} {sum_} ends {after_ms:.2f} ms after the late arrival, loss {losses[name]:.6f}")
        one, other = (jax.device_get(each.worker.variables) for each in states.values())
        apart = max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), one, other)))
        devices.say(f"  parameters differ by at most {apart:.1e}")


def parsed_late(text: str) -> Late:
    """The late worker and its seconds, of `rank=1,ms=20`."""
    try:
        return arguments.late(text)
    except ArgumentTypeError as error:
        raise JaxcommError(f"--late: {error}") from None


def of_gradients(sites: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The call site of the gradients: that of the most bytes; the others sum losses and metrics."""
    return max(sites, key=lambda site: site["bytes"])


def without_and_under(sites: Sequence[dict[str, Any]], plan: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gradients' call sites without a plan, whatever schedule runs there, and under the plan of this name."""
    under = [site for site in sites if site["plan"] == plan]
    return of_gradients([site for site in sites if site not in under]), of_gradients(under)


def lateness_ms(site: dict[str, Any]) -> tuple[float, float]:
    """How late the late worker is after the next one, and how long the sum takes from there on.

    The late worker is who comes last in most steps, and medians are over those steps.
    """
    arrivals = np.array(site["arrivals"])
    last = arrivals.argmax(axis=1)
    counted = last == np.bincount(last).argmax()
    latest = np.sort(arrivals[counted], axis=1)
    after_s = np.array(site["after_arrival_s"])[counted]
    return 1e3 * float(np.median(latest[:, -1] - latest[:, -2])), 1e3 * float(np.median(after_s))


def summary(folder: Path) -> str:
    """The effect of the plan, by the run's metrics."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = []
    for planned, name in (("0.0", "without a plan"), ("1.0", "under the plan")):
        if found := [row for row in rows if row["planned"] == planned]:
            columns = [key for key in ("step_ms", "late_ms", "after_ms") if key in found[0]]
            values = [f"{key} {median(float(row[key]) for row in found):.1f}" for key in columns]
            lines.append(f"{name:<15} {', '.join(values)}; accuracy at its end {float(found[-1]['accuracy']):.4f}")
    return "\n".join(lines)


def main() -> None:
    """Runs the recipe and says what the plan changed."""
    folder = recipe.out("late_rank")
    own = (LATE, UNITS, PLAN_AT)
    recipe.run("late_rank", lambda _: digits(UNITS.value), own=own, training=partial(Watched, folder=folder))
    if devices.is_first():
        print(summary(folder))


if __name__ == "__main__":
    flags.register_validator("sync", lambda sync: sync in ("jaxcomm", "bsp"), "it must be jaxcomm or bsp here")
    flags.register_validator("plan", lambda plan: plan is None, "this recipe makes its own plan")
    recipe.main(main)
