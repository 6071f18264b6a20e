"""The custom calls around collectives that XLA runs: in every transformation each arrival counts once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import environment
from jaxcomm.arrivals import records
from jaxcomm.collectives import recorded
from jaxcomm.gpu import lowering

RANKS = 4


@pytest.fixture(autouse=True)
def by_xla(monkeypatch: pytest.MonkeyPatch, no_plan: None) -> Iterator[None]:
    """XLA runs the collectives, and their arrivals are recorded."""
    monkeypatch.setenv(environment.EXECUTOR, "xla")
    monkeypatch.setenv(environment.ARRIVALS, "1")
    jax.clear_caches()
    jaxcomm.reset_stats()
    yield
    jax.clear_caches()


def on_ranks(body: Callable[[Any], Any], out: Any = None, *, check_vma: bool = False) -> Callable[..., Any]:
    """The body under shard_map over four devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:RANKS]), ("data",))
    out = P("data") if out is None else out
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=out, check_vma=check_vma)


def calls() -> int:
    """The number of calls since the start of the test."""
    return sum(site["calls"] for site in jaxcomm.stats())


def sums(ops: Any, x: Any) -> Any:
    return ops.psum(x, "data")


# The body, which takes jaxcomm or jax.lax; the result's out_specs; check_vma; and the number of calls.
CASES: dict[str, tuple[Callable[[Any, Any], Any], Any, bool, int]] = {
    "psum": (sums, P(), False, 1),
    "check_vma": (sums, P(), True, 1),
    "tree": (lambda ops, x: ops.psum({"x": x, "n": x.astype(jnp.int8), "b": x > 3}, "data"), P(), False, 1),
    "gather": (lambda ops, x: ops.all_gather(x, "data", tiled=True), P(), False, 1),
    "scatter": (lambda ops, x: ops.psum_scatter(x, "data", tiled=True), P("data"), False, 1),
    "scan": (lambda ops, x: lax.scan(lambda c, _: (ops.pmax(c, "data"), None), x, length=9)[0], P("data"), False, 9),
    "while": (
        lambda ops, x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, ops.psum(c[1], "data") / 4), (0, x))[1],
        P("data"),
        False,
        5,
    ),
    "vmap": (lambda ops, x: jax.vmap(lambda y: ops.psum(y, "data"))(x.reshape(2, -1)).reshape(-1), P(), False, 1),
    "gradient": (lambda ops, x: jax.grad(lambda y: jnp.sum(jnp.sin(ops.psum(y, "data"))))(x), P("data"), False, 2),
    "gradient with check_vma": (
        lambda ops, x: jax.grad(lambda y: jnp.sum(jnp.sin(ops.psum(y, "data"))))(x),
        P("data"),
        True,
        1,
    ),
    "two after each other": (lambda ops, x: ops.psum(jnp.sin(ops.psum(x, "data")), "data"), P("data"), False, 2),
    "unused": (lambda ops, x: (ops.psum(x, "data"), x)[1], P("data"), False, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_each_call_is_recorded_once_and_gives_laxs_result(name: str) -> None:
    body, out, check_vma, expected = CASES[name]
    x = jnp.arange(8.0 * RANKS)
    ours = jax.jit(on_ranks(lambda x: body(jaxcomm, x), out, check_vma=check_vma))
    laxs = jax.jit(on_ranks(lambda x: body(lax, x), out, check_vma=check_vma))
    for call in range(1, 4):
        for found, right in zip(jax.tree.leaves(ours(x)), jax.tree.leaves(laxs(x)), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)
        assert calls() == call * expected
    for device in (device for site in records.read().values() for device in site.values()):
        assert not device.is_open


def test_an_invariant_sum_in_a_loop_ends_as_often_as_it_begins() -> None:
    """XLA may move the sum out of the loop."""

    def body(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, total: total * 0.5 + jaxcomm.psum(x, "data"), jnp.zeros_like(x))

    jax.block_until_ready(jax.jit(on_ranks(body))(jnp.arange(48.0)))
    assert calls() in (1, 5)
    for device in (device for site in records.read().values() for device in site.values()):
        assert device.arrived == device.ended


def test_a_donated_operand_is_summed_in_place() -> None:
    step = jax.jit(on_ranks(lambda x: jaxcomm.psum(x, "data")), donate_argnums=0)
    x = jnp.ones((RANKS, 1000))
    for call in range(3):
        x = step(x)
        assert float(x[0, 0]) == 4.0 ** (call + 1)
    assert calls() == 3


def test_an_operand_that_lives_on_stays_intact() -> None:
    total, same = jax.jit(on_ranks(lambda x: (jaxcomm.psum(x, "data"), x + 1)))(jnp.arange(8.0))
    np.testing.assert_array_equal(same, np.arange(1.0, 9.0))
    assert float(total[0]) == 0 + 2 + 4 + 6


def test_arrays_that_xla_partitions_stay_sharded() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    body = jax.shard_map(
        lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P(), axis_names={"data"}
    )
    x = jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.sharding.NamedSharding(mesh, P("data", "model")))
    step = jax.jit(body)
    np.testing.assert_array_equal(step(x), np.arange(64.0).reshape(2, 4, 8).sum(axis=0))
    text = step.lower(x).compile().as_text() or ""
    assert "all-gather" not in text and text.count('custom_call_target="jaxcomm_arrive"') == 1
    (site,) = [site for site in jaxcomm.stats() if site["calls"]]
    assert site["ranks"] == 2 and site["calls"] == 4  # one for each group


def test_nothing_is_added_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.ARRIVALS)
    step = jax.jit(on_ranks(lambda x: jaxcomm.psum(x, "data")))
    assert "jaxcomm_arrive" not in step.lower(jnp.arange(8.0)).as_text()


def test_steps_for_gpus_have_the_calls_around_laxs_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.EXECUTOR, "")
    monkeypatch.setattr(lowering, "register_arrivals", lambda: True)
    recorded._can_record.cache_clear()
    step = jax.jit(on_ranks(lambda x: lax.scan(lambda c, _: (jaxcomm.psum(c, "data"), None), x, length=3)[0]))
    text = step.trace(jnp.arange(8.0)).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"@jaxcomm_arrive|stablehlo\.all_reduce|@jaxcomm_end", text)
    assert found == ["@jaxcomm_arrive", "stablehlo.all_reduce", "@jaxcomm_end"]
    assert 'about = "[\\22psum\\22,\\22data\\22,' in text and text.count("output_operand_alias<") == 2
    recorded._can_record.cache_clear()


def test_without_a_core_for_gpus_steps_go_on_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.EXECUTOR, "")
    monkeypatch.setattr(lowering, "register_arrivals", lambda: False)
    recorded._can_record.cache_clear()
    step = jax.jit(on_ranks(lambda x: jaxcomm.psum(x, "data")))
    text = step.trace(jnp.arange(8.0)).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxcomm_arrive" not in text and "stablehlo.all_reduce" in text
    recorded._can_record.cache_clear()


def test_all_compilations_of_a_step_are_one_site() -> None:
    for _ in range(3):
        jax.clear_caches()
        jax.block_until_ready(jax.jit(on_ranks(lambda x: jaxcomm.psum(x, "data")))(jnp.arange(20.0)))
    counts = [device.arrived for site in records.read().values() for device in site.values()]
    assert 3 in counts and calls() == 3
