"""Calls within a process run the schedule for the rank that has not arrived."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi
from tests.collectives.plans import SPECS, by_turns

RANKS, LATE_S = 8, 0.05


@pytest.mark.parametrize("kind", ["straggler", "broadcast", "late_join"])
def test_the_others_work_while_any_rank_is_away(kind: str) -> None:
    spec = {"kind": kind, "late": "any"} | ({} if kind == "broadcast" else {"chunks": 14})
    plan = by_turns(spec, lateness_s=0.001)
    mesh = jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))
    values = np.random.default_rng(1).normal(size=(RANKS, 100_000)).astype(np.float32)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    def step(x: jax.Array, late: jax.Array) -> jax.Array:
        x = ffi.delay(x, jnp.where(lax.axis_index("data") == late, LATE_S, 0.0))
        return jaxcomm.psum(x, "data", plan=plan)

    step(values, 0)
    jaxcomm.reset_stats()
    for late in [*range(RANKS), 3, 1]:
        sums = np.asarray(step(values, late))
        np.testing.assert_allclose(sums[0], values.sum(0, dtype=np.float64), atol=1e-4)
        for rank in range(1, RANKS):
            np.testing.assert_array_equal(sums[rank], sums[0])  # bit for bit
    (site,) = (each for each in jaxcomm.stats() if each["plan"] == plan.hash[:8])
    assert site["early_calls"] < RANKS, "a busy machine may make others late, too"
    assert site["early_bytes_share"] > 0.1
    assert min(site["late"]) >= 1 or site["early_calls"]


def test_a_trial_drops_what_gains_nothing() -> None:
    plan = by_turns(SPECS["straggler"] | {"late": "any", "chunks": 70}, lateness_s=1e-4)
    mesh = jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))
    step = jax.jit(
        jax.shard_map(lambda v: jaxcomm.psum(v, "data", plan=plan), mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    )
    jaxcomm.reset_stats()
    x = np.ones((RANKS, 1000), np.float32)
    for _ in range(150):
        np.testing.assert_array_equal(step(x), np.full_like(x, RANKS))
    (site,) = (each for each in jaxcomm.stats() if each["plan"] == plan.hash[:8])
    assert site["calls"] == 150
    assert 0 < site["early_calls"] < 151
