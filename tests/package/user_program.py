"""A user's training script with most of the public API, for the type checkers of `test_types.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import elastic, planner, profile, schedules, train
from jaxcomm.records import SiteStats

Params = dict[str, jax.Array]


class Batch(NamedTuple):
    x: jax.Array
    y: jax.Array


def loss(params: Params, batch: Batch) -> jax.Array:
    return ((batch.x @ params["kernel"] + params["bias"] - batch.y) ** 2).mean()


def loss_and_size(params: Params, batch: Batch) -> tuple[jax.Array, int]:
    return loss(params, batch), batch.x.shape[0]


def updated(params: Params, grads: Params) -> Params:
    return {name: leaf - 0.1 * grads[name] for name, leaf in params.items()}


def step(params: Params, batch: Batch) -> tuple[Params, jax.Array]:
    """Runs inside jax.shard_map over the axis "data"."""
    value, grads = jax.value_and_grad(loss)(jaxcomm.pcast(params, "data", to="varying"), batch)
    mean: Params = jaxcomm.pmean(grads, "data", drop=train.Drop(0.1, policy="agreed"))
    ranks: int = jaxcomm.psum(1, ("data",))
    norms: list[jax.Array] = jaxcomm.pmax([jnp.max(leaf) for leaf in mean.values()], "data")
    least = jaxcomm.pmin(norms[0], "data").astype(jnp.float32)
    rows = jaxcomm.all_gather(value, "data", to="varying").sum() / ranks
    part: jax.Array = jaxcomm.psum_scatter(mean["kernel"], "data", scatter_dimension=0, tiled=True, plan=None)
    return updated(params, mean), rows + 0 * (least + part.sum())


def step_under_jit(params: Params, batch: Batch, mesh: jax.sharding.Mesh) -> tuple[Params, jax.Array]:
    value, grads = jaxcomm.value_and_grad(loss, "data", mesh=mesh)(params, batch)
    (_, size), _ = jaxcomm.value_and_grad(loss_and_size, "data", has_aux=True, in_specs=(P(), P("data")))(params, batch)
    again: Params = jaxcomm.grad(loss, "data", allow_int=True)(params, batch)
    both: tuple[Params, int] = jaxcomm.grad(loss_and_size, "data", has_aux=True)(params, batch)
    return updated(updated(params, grads), again), value + 0 * (size + both[1])


def local_steps(params: Params, number: jax.Array) -> Params:
    average = train.divide_and_shuffle([[[0, 1], [2, 3]]], "data", bucket_bytes=1 << 18)
    params = average(params, number, train.group_table([[[0, 1], [2, 3]]]))
    params = train.exponential_gossip(4, "data")(train.local_sgd(4, "data")(params, number), 3)
    return train.pmean_buckets(train.pmean_in_backward(params, "data"), "data")


def planned() -> jaxcomm.plan.Plan:
    link = profile.Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a script")
    measured = profile.Profile(ranks=4, link=link, provenance=profile.Provenance(source="a script", tool="by hand"))
    made = planner.plan(profile.with_late_rank(measured, 3, 0.02), seed=0)
    jaxcomm.plan.save(made, "plan.json")
    jaxcomm.plan.verify(schedules.straggler(4, straggler=3, chunks=2))
    return jaxcomm.plan.load("plan.json", roles={"straggler": 2})


def waits(site: SiteStats) -> float:
    return sum(site["wait_s"]) / max(site["calls"], 1)


def report() -> dict[str, float]:
    stats = jaxcomm.stats()
    trials = [trial["outcome"] for site in stats if (trial := site.get("trial"))]
    rails: list[str] = [f"{rail['rail']}: {rail['shares'][-1][1]}" for rail in stats.rails if rail["is_open"]]
    plans = [plan["plan"] for plan in stats.plans] + [event["text"] for event in stats.events]
    print(stats, trials, rails, plans, max(map(waits, stats), default=0.0))
    stats.save("run.json")
    return jaxcomm.metrics.scalars(stats)


def main(plans: Mapping[str, str | None]) -> None:
    jaxcomm.backend.use()
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    jaxcomm.init(mesh, plan="auto", rails=["eth0", "eth1"], deadline_s=30.0, trial=False)
    jaxcomm.init(plan=plans)
    jaxcomm.use_plan({"data": planned(), ("data", "model"): None})
    batch = Batch(jnp.ones((8, 4)), jnp.ones(8))
    params: Params = {"kernel": jnp.zeros(4), "bias": jnp.zeros(())}
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P())))
    try:
        with jaxcomm.use_plan("plan.json"), jaxcomm.replace_lax(), jaxcomm.errors.translated():
            for number in range(3):
                number, params = elastic.catch_up(number, params)
                params, value = run(params, batch)
                params = local_steps(params, jnp.asarray(number))
                params, value = step_under_jit(params, batch, mesh)
                print(number, value, np.asarray(jaxcomm.lax.psum(value, "data")))
    except jaxcomm.errors.DeadlineError as error:
        print(error.missing, error.waiting)
    except jaxcomm.PlanError:
        jaxcomm.reset_stats()
    print(report())


if __name__ == "__main__":
    main({"data": "plan.json"})
