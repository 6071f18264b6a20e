"""Mistakes in the use of jaxcomm: type checkers must refuse each line below `mistakes`, and no other line."""

from __future__ import annotations

import jax
import numpy as np

import jaxcomm
from jaxcomm import elastic, profile, schedules, train

Params = dict[str, jax.Array]


def loss(params: Params, batch: jax.Array) -> jax.Array:
    return (params["kernel"] * batch).mean()


def mistakes(params: Params, batch: jax.Array, plan: jaxcomm.plan.Plan) -> None:
    jaxcomm.psums(params, "data")
    jaxcomm.psum(params)
    jaxcomm.psum(params, axis="data")
    jaxcomm.psum(params, 0.5)
    jaxcomm.psum(params, "data", drop=0.1)
    jaxcomm.psum(params, "data", axis_index_groups=[0, 1])
    jaxcomm.psum(params, "data", plan=3)
    print(jaxcomm.pmean(params, "data").shape)
    print(jaxcomm.pmean(batch, "data")["kernel"]["bias"].nothing)
    jaxcomm.all_gather(batch, "data", to="invariant")
    jaxcomm.psum_scatter(batch, "data", scatter_dimension="0")
    jaxcomm.pcast(params, "data", to="vary")
    jaxcomm.value_and_grad(loss, "data", argnum=0)
    jaxcomm.value_and_grad(loss, "data")(batch, batch)
    print(jaxcomm.value_and_grad(loss, "data")(params, batch)[1].shape)
    jaxcomm.grad(loss, "data")(params)
    jaxcomm.grad(loss, "data", has_aux=True)
    print(jaxcomm.lax.psum(params, "data").shape)
    jaxcomm.init(deadline=30.0)
    jaxcomm.init(deadline_s="30")
    jaxcomm.use_plan(plan.json)
    jaxcomm.stats()[0]["call"]
    jaxcomm.stats()[0]["name"] + 1
    jaxcomm.stats()[0]["spans"][0]["bytes"]
    print(jaxcomm.stats().rail)
    jaxcomm.stats().plans[0]["since_s"].upper()
    jaxcomm.plan.load(plan)
    schedules.straggler(8, late=3, chunks=2)
    schedules.ring("8")
    schedules.half("all_reduce", schedules.ring(8))
    train.Drop(0.1, policy="agree")
    train.Drop.of(plan, policy="lossy")
    print(train.local_sgd(4, "data")(params, 3).shape)
    train.divide_and_shuffle(plan, "data", bucket=1)
    train.divide_and_shuffle(plan, "data")(params, "3")
    elastic.catch_up("3", params)
    print(elastic.catch_up(3, params)[1].shape)
    profile.load(np.ones(3))
