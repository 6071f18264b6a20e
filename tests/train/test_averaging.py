"""Averaging over a few ranks at a time: the parameters after a step, and how soon the ranks agree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi, planner
from jaxcomm.errors import PlanError
from jaxcomm.ffi import marks
from jaxcomm.plan.consensus import contraction
from jaxcomm.profile import Link, Profile, Provenance
from jaxcomm.train import consensus_distance, divide_and_shuffle, exponential_gossip, group_table, local_sgd

RANKS = 8
AVERAGED, SECOND = 0, 1  # numbers of the two marks
# Two racks of four ranks. In iteration i, the ranks number i of both racks average together.
PERIOD = [[[i, 4 + i], [r for r in range(4) if r != i], [4 + r for r in range(4) if r != i]] for i in range(4)]


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


def run(mesh, average, params, steps, start=0):
    """The ranks' parameters after `steps` steps in one compiled loop, one row per rank."""

    def loop(params, start):
        return jax.lax.fori_loop(start, start + steps, lambda step, params: average(params, step), params)

    mapped = jax.shard_map(loop, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    return jax.tree.map(np.asarray, jax.jit(mapped)(params, jnp.int32(start)))


def cluster(**fields):
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    return Profile(ranks=RANKS, link=link, provenance=Provenance(source="a test", tool="pytest"), **fields)


def matrix(groups):
    """The doubly stochastic matrix by which a step multiplies the parameters."""
    result = np.zeros((RANKS, RANKS))
    for group in groups:
        result[np.ix_(group, group)] = 1 / len(group)
    return result


def parameters(seed=0):
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal((RANKS, size)).astype(np.float32) for name, size in (("kernel", 5), ("bias", 1))
    }


partitions = st.permutations(range(RANKS)).flatmap(
    lambda order: st.lists(st.integers(1, RANKS - 1), max_size=4, unique=True).map(
        lambda cuts: [part.tolist() for part in np.split(np.array(order), sorted(cuts))]
    )
)


@settings(max_examples=6, deadline=None)
@given(period=st.lists(partitions, min_size=1, max_size=3), start=st.integers(0, 5))
def test_every_step_multiplies_with_its_groups_matrix(mesh, period, start):
    params = parameters()
    results = run(mesh, divide_and_shuffle(period, "data"), params, 3, start)
    product = np.eye(RANKS)
    for step in range(start, start + 3):
        product = matrix(period[step % len(period)]) @ product
    np.testing.assert_allclose(product.sum(axis=0), 1)
    np.testing.assert_allclose(product.sum(axis=1), 1)
    jax.tree.map(
        lambda ours, was: np.testing.assert_allclose(ours, product @ was, rtol=1e-5, atol=1e-6), results, params
    )


def test_ranks_of_a_group_hold_the_same_bits(mesh):
    results = run(mesh, divide_and_shuffle(PERIOD, "data"), parameters(), 1, 2)["kernel"]
    for group in PERIOD[2]:
        assert len({results[rank].tobytes() for rank in group}) == 1


def test_a_run_taken_up_at_any_phase_gives_the_same_bits(mesh):
    average = divide_and_shuffle(PERIOD, "data")
    whole = run(mesh, average, parameters(), 7, 1)
    halves = run(mesh, average, run(mesh, average, parameters(), 3, 1), 4, 4)
    jax.tree.map(np.testing.assert_array_equal, whole, halves)


@pytest.mark.parametrize(("nbytes", "calls"), [(1, 4), (2048, 2), (2**20, 1)])
def test_buckets_average_to_the_bits_of_one_call(mesh, nbytes, calls):
    random = np.random.default_rng(1)
    shapes = {"a": (512,), "b": (3, 100), "c": (7,), "d": (1,)}  # 2048, 1200, 28 and 4 bytes
    params = {name: random.standard_normal((RANKS, *shape)).astype(np.float32) for name, shape in shapes.items()}
    whole = run(mesh, divide_and_shuffle(PERIOD, "data"), params, 3, 1)
    ffi.reset_stats()
    parts = run(mesh, divide_and_shuffle(PERIOD, "data", bucket_bytes=nbytes), params, 3, 1)
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    names = sorted(site["name"] for site in ffi.sites() if site["calls"])
    assert names == ([f"group_sum bucket {i} of {calls}" for i in range(1, calls + 1)] if calls > 1 else ["group_sum"])


def test_a_bucket_is_averaged_before_other_gradients_are_known(mesh):
    """A layer's average ends while another layer's gradient is still being computed, for one second here."""
    average = divide_and_shuffle(PERIOD, "data", bucket_bytes=1)

    def late(params, step):
        params = average(
            {"first": params["first"], "second": marks.mark(ffi.delay(params["second"], 1.0), SECOND)}, step
        )
        return params | {"first": marks.mark(params["first"], AVERAGED)}

    params = {name: np.ones((RANKS, 64), np.float32) for name in ("first", "second")}
    mapped = jax.shard_map(late, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    step = jax.jit(mapped)
    jax.block_until_ready(step(params, jnp.int32(0)))
    found = marks.record(lambda: jax.block_until_ready(step(params, jnp.int32(0))))
    last = {number: max(mark.seconds for mark in found if mark.number == number) for number in (AVERAGED, SECOND)}
    assert last[AVERAGED] < last[SECOND]


AVERAGES = {
    "divide and shuffle": lambda: divide_and_shuffle(PERIOD, "data"),
    "gossip": lambda: exponential_gossip(RANKS, ["data"]),
    "local SGD": lambda: local_sgd(1, "data"),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_keep_types_and_may_be_scanned(mesh, name, check_vma):
    """Values that are equal on all ranks keep all their bits. A mean of integers is rounded down."""
    tree = {
        "steps": np.full(RANKS, 20_000_001, np.int32),
        "half": np.full(RANKS, 0.5, jnp.bfloat16),
        "none": np.zeros((RANKS, 0), np.float32),
        "single": np.full(RANKS, 0.5, np.float32),
        "other": np.arange(RANKS, dtype=np.int32),
    }
    average = AVERAGES[name]()

    def three(params):
        return jax.lax.scan(lambda params, step: (average(params, step), None), params, jnp.arange(3))[0]

    mapped = jax.shard_map(three, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check_vma)
    found = jax.tree.map(np.asarray, jax.jit(mapped)(tree))
    assert {name: leaf.dtype for name, leaf in found.items()} == {name: leaf.dtype for name, leaf in tree.items()}
    assert 0 <= found.pop("other").min() <= 3
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, tree[name])


def test_the_distance_of_parameters_in_half_precision_is_that_of_their_values(mesh):
    values = np.random.default_rng(0).standard_normal(RANKS * 2**15) * 2  # in float16 the sum of the squares overflows
    measure = jax.shard_map(lambda x: consensus_distance(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    for dtype in (np.float16, jnp.bfloat16):
        half = values.astype(dtype)
        rows = half.astype(np.float64).reshape(RANKS, -1)
        exact = np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
        assert jax.jit(measure)({"w": half}) == pytest.approx(exact, rel=1e-4)


@pytest.fixture(scope="module")
def distances(mesh):
    """A jitted function of (parameters, table, period): the ranks' distances before and after each of two periods."""
    average = divide_and_shuffle(PERIOD, "data")

    def measure(params, table, period):
        found = [consensus_distance(params, "data")]
        for _ in range(2):
            params = jax.lax.fori_loop(0, period, lambda step, params: average(params, step, table), params)
            found.append(consensus_distance(params, "data"))
        return jnp.stack(found)

    specs = {"in_specs": (P("data"), P(), P()), "out_specs": P()}
    return jax.jit(jax.shard_map(measure, mesh=mesh, **specs))


@settings(max_examples=20, deadline=None)
@given(period=st.lists(partitions, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_any_table_brings_the_ranks_together_at_least_as_soon_as_rho_says(distances, period, seed):
    found = np.asarray(distances(parameters(seed), group_table(period), len(period)))
    assert (found[1:] <= contraction(period, RANKS) * found[:-1] + 1e-5).all()
    assert distances._cache_size() == 1
    rows = np.concatenate([leaf.reshape(RANKS, -1) for leaf in parameters(seed).values()], axis=1)
    assert found[0] == pytest.approx(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()), rel=1e-4)


def test_a_plan_s_groups_agree_at_least_as_soon_as_its_rho_says(mesh, distances, tmp_path):
    racks = [{"name": f"rack {i}", "ranks": list(range(4 * i, 4 * i + 4)), "uplink": 4.0} for i in range(2)]
    plan = planner.plan(cluster(racks=racks, collective={"bytes": 2**20, "seconds": 1.0}))
    jaxcomm.plan.save(plan, tmp_path / "plan.json")
    groups = plan.groups
    found = np.asarray(distances(parameters(), group_table(tmp_path / "plan.json"), groups.period))
    assert groups.rho < 1 and (found[1:] <= groups.rho * found[:-1] + 1e-6).all()
    np.testing.assert_array_equal(group_table(plan)[: groups.period], groups.table)
    results = [
        run(mesh, divide_and_shuffle(form, "data"), parameters(), 3)
        for form in (plan, str(tmp_path / "plan.json"), groups.iterations)
    ]
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, results[0])


@settings(max_examples=15, deadline=None)
@given(period=st.lists(partitions, min_size=1, max_size=3), step=st.integers(0, 5))
def test_a_step_with_a_table_multiplies_with_a_doubly_stochastic_matrix(stepped, period, step):
    found = np.asarray(stepped(np.eye(RANKS, dtype=np.float32), group_table(period), step))
    np.testing.assert_allclose(found, matrix(period[step % len(period)]), rtol=1e-6)
    np.testing.assert_allclose([found.sum(axis=0), found.sum(axis=1)], 1, rtol=1e-6)


@pytest.fixture(scope="module")
def stepped(mesh):
    average = divide_and_shuffle(PERIOD, "data")
    specs = {"in_specs": (P("data"), P(), P()), "out_specs": P("data")}
    return jax.jit(jax.shard_map(lambda x, table, step: average(x, step, table), mesh=mesh, **specs))


def test_it_compiles_once_for_all_steps(mesh):
    average = divide_and_shuffle(PERIOD, "data")
    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}
    mapped = jax.jit(jax.shard_map(average, mesh=mesh, check_vma=False, **specs))
    params = jax.device_put(parameters(), jax.NamedSharding(mesh, P("data")))
    for step in range(6):
        params = mapped(params, jnp.int32(step))
    assert mapped._cache_size() == 1


def test_a_plan_for_all_ranks_may_be_active(mesh):
    for_all = planner.plan(cluster())
    average = divide_and_shuffle(PERIOD, "data")
    plain = run(mesh, average, parameters(), 4)
    with jaxcomm.use_plan(for_all):
        planned = run(mesh, average, parameters(), 4)
    jax.tree.map(np.testing.assert_array_equal, plain, planned)


def test_local_sgd_averages_all_after_every_so_many_steps(mesh):
    params = parameters()
    results = run(mesh, local_sgd(3, "data"), params, 2)
    jax.tree.map(np.testing.assert_array_equal, results, params)
    results = run(mesh, local_sgd(3, "data"), params, 3)
    np.testing.assert_allclose(results["kernel"], np.tile(params["kernel"].mean(axis=0), (RANKS, 1)), rtol=1e-5)


def test_gossip_on_powers_of_two_agrees_after_one_round_of_hops(mesh):
    params = parameters()
    results = run(mesh, exponential_gossip(RANKS, "data"), params, 3)
    np.testing.assert_allclose(
        results["kernel"], np.tile(params["kernel"].mean(axis=0), (RANKS, 1)), rtol=1e-5, atol=1e-6
    )


def test_groups_of_other_ranks_than_the_axis_s_are_refused(mesh):
    with pytest.raises(ValueError, match=r"the groups are for 4 ranks, but axis 'data' has 8\.\n  Cure: plan from"):
        run(mesh, divide_and_shuffle([[[0, 1], [2, 3]]], "data"), parameters(), 1)
    for table in (np.zeros((1, 4), np.int32), np.zeros(RANKS, np.int32), np.zeros((1, RANKS))):
        average = divide_and_shuffle(PERIOD, "data")
        with pytest.raises(ValueError, match=r"the table is .*; it must be int32\[rows, 8\]\.\n  Cure: pass what"):
            run(mesh, lambda params, step, t=table, a=average: a(params, step, t), parameters(), 1)


@pytest.mark.parametrize("ranks", [4, 16])
def test_gossip_of_other_ranks_than_the_axis_s_is_refused(mesh, ranks):
    with pytest.raises(ValueError, match=rf"it is for {ranks} ranks, but axis 'data' has 8\.\n  Cure: .*\(8, 'data'\)"):
        run(mesh, exponential_gossip(ranks, "data"), parameters(), 1)


@pytest.mark.parametrize("name", AVERAGES)
def test_outside_of_the_axis_the_call_is_named(name):
    with pytest.raises(NameError, match=r"jaxcomm\..*: there is no axis 'data' here"):
        AVERAGES[name]()(parameters(), 0)


def test_a_step_that_is_no_integer_is_refused(mesh):
    average = divide_and_shuffle(PERIOD, "data")
    with pytest.raises(ValueError, match=r"step is float32\[\]; it must be one integer"):
        run(mesh, lambda params, step: average(params, step / 2), parameters(), 1)


def test_a_plan_without_groups_is_refused():
    with pytest.raises(PlanError, match=r"plan [0-9a-f]{8} has no groups: .*\n  Cure: plan with"):
        divide_and_shuffle(planner.plan(cluster()), "data")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: divide_and_shuffle([], "data"), "iterations is empty"),
        (
            lambda: divide_and_shuffle([[[0, 1], [1, 2]]], "data"),
            r"iterations\[0\] is .* must hold each of the 4 ranks once",
        ),
        (lambda: divide_and_shuffle([[[0, 1]], [[0], [2]]], "data"), r"iterations\[1\] is .* each of the 2 ranks once"),
        (lambda: divide_and_shuffle([[0, 1], [2, 3]], "data"), r"iterations is \[\[0, 1\].*\n  Cure: \[\[\[0, 1\]"),
        (
            lambda: divide_and_shuffle(PERIOD, "data", bucket_bytes=0),
            r"bucket_bytes is 0; .* at least 1\.\n  Cure: 2\*\*18",
        ),
        (lambda: local_sgd(0, "data"), "local_sgd: every is 0; it must be a whole number of steps, at least 1"),
        (lambda: local_sgd(2.5, "data"), "local_sgd: every is 2.5"),
        (lambda: exponential_gossip(1, "data"), "exponential_gossip: ranks is 1; it must be at least 2"),
        (lambda: exponential_gossip("data", 8), "exponential_gossip: ranks is 'data'"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
