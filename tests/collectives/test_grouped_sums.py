"""Sums over groups that are data: the step reads the groups when it runs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi
from jaxcomm.collectives.grouped import _in_lax, group_sum

RANKS = 8
rows = st.lists(st.integers(0, RANKS - 1), min_size=RANKS, max_size=RANKS)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture
def short_deadline():
    ffi.set_deadline(1.0)
    yield
    ffi.set_deadline(60.0)


def values():
    random = np.random.default_rng(0)
    return {
        "kernel": random.standard_normal((RANKS, 70)).astype(np.float32),
        "bias": random.standard_normal(RANKS).astype(np.float32),
        "half": jnp.asarray(random.integers(-8, 8, (RANKS, 3, 2)), jnp.bfloat16),
        "steps": random.integers(0, 9, (RANKS, 1)).astype(np.int32),
    }


@pytest.fixture(scope="module")
def step(mesh):
    """One compiled step for all tests. It takes a tree of four types, and the groups."""
    return jax.jit(partial_mapped(mesh, lambda x, groups: group_sum(x, groups, "data"), (P("data"), P())))


def partial_mapped(mesh, function, in_specs, **options):
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=P("data"), **options)


def expected(x, row):
    together = np.array([[a == b for b in row] for a in row])
    return np.einsum("ab,b...->a...", together, np.asarray(x, np.float64))


@settings(max_examples=25, deadline=None)
@given(row=rows)
def test_every_group_sums_for_itself_in_one_compiled_step(step, row):
    x = values()
    found = jax.tree.map(np.asarray, step(x, jnp.array(row, jnp.int32)))
    for name, leaf in x.items():
        assert found[name].dtype == leaf.dtype
        np.testing.assert_allclose(found[name].astype(np.float64), expected(leaf, row), rtol=1e-5, atol=1e-5)
        for rank, group in enumerate(row):
            assert found[name][rank].tobytes() == found[name][row.index(group)].tobytes()
    assert step._cache_size() == 1


@settings(max_examples=10, deadline=None)
@given(table=st.lists(rows, min_size=4, max_size=4))
def test_a_scan_reads_another_row_in_every_step(mesh, scanned, table):
    x = values()["kernel"]
    found = scanned(jax.device_put(x, jax.NamedSharding(mesh, P("data"))), jnp.array(table, jnp.int32))
    wanted = x
    for row in table:
        wanted = expected(wanted, row) / RANKS
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def scanned(mesh):
    def run(x, table):
        return jax.lax.scan(lambda x, row: (group_sum(x, row, "data") / RANKS, None), x, table)[0]

    return jax.jit(partial_mapped(mesh, run, (P("data"), P())), donate_argnums=0)


def test_lax_does_the_same_where_there_is_no_core(mesh, step):
    row = jnp.array([3, 0, 3, 1, 0, 0, 7, 3], jnp.int32)
    x = values()
    lax = partial_mapped(
        mesh,
        lambda x, row: dict(zip(x, _in_lax(row, *x.values(), axes=("data",))[1:], strict=True)),
        (P("data"), P()),
        check_vma=False,
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-2), jax.jit(lax)(x, row), step(x, row))
    for bad in (row.at[2].set(8), row.at[2].set(-1)):
        assert np.isnan(jax.jit(lax)({"x": x["kernel"]}, bad)["x"]).all()


def test_it_is_differentiated_and_batched(mesh):
    row = jnp.array([0, 0, 1, 1, 1, 2, 0, 3], jnp.int32)
    x = values()["kernel"]

    def loss(x, row):
        return (group_sum(x, row, "data") ** 2).sum()[None]

    def gradient(x, row):
        return jax.grad(lambda x: loss(x, row)[0])(x)

    found = jax.jit(partial_mapped(mesh, gradient, (P("data"), P())))(x, row)
    np.testing.assert_allclose(found, expected(2 * expected(x, row), row), rtol=1e-4, atol=1e-4)
    batched = partial_mapped(
        mesh, lambda x, row: jax.vmap(lambda x: group_sum(x, row, "data"), 1, 1)(x), (P("data"), P())
    )
    np.testing.assert_allclose(jax.jit(batched)(x, row), expected(x, row), rtol=1e-5, atol=1e-5)


def test_vmap_refuses_grouped_sums_that_it_cannot_do(mesh):
    x, row = values()["kernel"], jnp.arange(RANKS, dtype=jnp.int32)
    with pytest.raises(NotImplementedError, match=r"axis 'data' is jax\.vmap's, .*\n  Cure: jax\.shard_map"):
        jax.vmap(lambda x: group_sum(x, row, "data"), axis_name="data")(x)
    rows = partial_mapped(mesh, lambda x, rows: jax.vmap(lambda row: group_sum(x, row, "data"))(rows), (P("data"), P()))
    with pytest.raises(NotImplementedError, match=r"the groups differ within a batch of jax\.vmap\.\n  Cure: the same"):
        jax.jit(rows)(x, jnp.stack([row, row]))


def test_other_axes_of_the_mesh_keep_apart_whether_automatic_or_not():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)
    row = jnp.array([1, 0, 1, 1], jnp.int32)
    for axis_names in ({"data", "model"}, {"data"}):
        specs = P("data", "model") if len(axis_names) == 2 else P("data")
        mapped = jax.jit(
            jax.shard_map(
                lambda x, row: group_sum(x, row, "data"),
                mesh=mesh,
                in_specs=(specs, P()),
                out_specs=specs,
                axis_names=axis_names,
            )
        )
        sharded = jax.device_put(x, jax.NamedSharding(mesh, P("data", "model")))
        np.testing.assert_allclose(mapped(sharded, row), expected(x, row))


def test_several_axes_count_as_one():
    mesh = jax.make_mesh((2, 4), ("host", "nic"), axis_types=(AxisType.Auto,) * 2)
    row = jnp.array([0, 0, 1, 1, 0, 2, 2, 1], jnp.int32)
    axes = ("host", "nic")
    mapped = jax.shard_map(
        lambda x, row: group_sum(x, row, axes), mesh=mesh, in_specs=(P(axes), P()), out_specs=P(axes)
    )
    np.testing.assert_allclose(jax.jit(mapped)(np.arange(8.0), row), expected(np.arange(8.0), row))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            [0, 1, 0, 1, 0, 1, 0, 1],
            r"(?s)rank (5 .*\[0 1 0 1 .*\[0 0 0 0 |. .*\[0 0 0 0 .*rank 5 has \[0 1 0 1).*Cure: ",
        ),
        ([0, 0, 8, 0, 1, 1, 1, 1], r"(?s)rank 5 says that rank 2 is in group 8; groups are 0 to 7\..*Cure: "),
    ],
)
def test_ranks_that_pass_other_groups_are_named_at_once(mesh, short_deadline, other, message):
    row = jnp.array([0, 0, 0, 0, 1, 1, 1, 1], jnp.int32)

    def run(x, mine):
        return group_sum(x, mine[0], "data")

    mapped = jax.jit(partial_mapped(mesh, run, (P("data"), P("data")), check_vma=False))
    x = np.ones(RANKS, np.float32)
    mine = np.tile(row, (RANKS, 1))
    mine[5] = other
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(mapped(x, mine))
    np.testing.assert_array_equal(mapped(x, np.tile(row, (RANKS, 1))), np.full(RANKS, 4))


def test_groups_of_another_shape_or_type_are_refused(mesh):
    for groups in (jnp.zeros(4, jnp.int32), jnp.zeros(8, jnp.float32)):
        with pytest.raises(ValueError, match=r"group_sum: groups are .*; they must be int32\[8\]"):
            jax.jit(partial_mapped(mesh, lambda x, row: group_sum(x, row, "data"), (P("data"), P())))(
                np.ones(8), groups
            )


def test_one_entry_of_the_statistics_has_all_groups(mesh, step):
    ffi.reset_stats()
    row = jnp.array([0, 0, 1, 1, 1, 2, 0, 3], jnp.int32)
    for _ in range(3):
        jax.block_until_ready(step(values(), row))
    [site] = [site for site in jaxcomm.stats() if site["calls"]]
    assert (site["name"], site["axes"], site["plan"]) == ("group_sum", "data", "groups")
    assert (site["ranks"], site["calls"], site["failed"]) == (RANKS, 3, 0)
    assert len(site["arrivals"]) == 3 and sum(site["late"]) == 6  # 3 calls × 2 groups with more than one rank
    assert all(len(own) == RANKS and min(own) >= 0 for own in site["work_s"])
    assert site["wait_s"][5] == site["wait_s"][7] == 0
