"""Sums that drop unimportant segments: the parts that may be dropped, the parts that must be kept, and trainings."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.train import Drop, bounded_drop
from tests.train.gradient_cases import RANKS, SEGMENT, SIZE, WIDTH, by_segment, gradients, importance, make_mesh, run


@pytest.fixture(scope="module")
def mesh():
    return make_mesh()


@pytest.mark.parametrize(
    ("bound", "check_vma"), [(0.0, True), (0.01, True), (0.1, True), (0.3, True), (0.3, False), (0.9, True)]
)
def test_agreed_ranks_leave_out_the_least_and_sum_the_rest_exactly(mesh, bound, check_vma):
    g = gradients()
    drop = Drop(bound, segment_bytes=SEGMENT)
    results = np.asarray(run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), g, check_vma=check_vma))
    exact = np.asarray(run(mesh, lambda x: jaxcomm.psum(x, "data"), g))[0]
    assert all(results[0].tobytes() == result.tobytes() for result in results)
    gone = ~by_segment(results[0]).any(axis=1)
    total = sum(importance(row) for row in g)
    assert gone.sum() == int(bound * SIZE / WIDTH)
    assert total[gone].max(initial=0) <= total[~gone].min()
    np.testing.assert_array_equal(results[0], np.where(np.repeat(gone, WIDTH)[:SIZE], 0, exact))


def test_what_is_no_float_or_too_small_to_cut_is_summed_exactly(mesh):
    tree = {"count": np.arange(RANKS * 40, dtype=np.int32).reshape(RANKS, 40), "bias": gradients(2, WIDTH)}
    drop = Drop(0.5, segment_bytes=SEGMENT)
    bounded = run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), tree)
    exact = run(mesh, lambda x: jaxcomm.psum(x, "data"), tree)
    jax.tree.map(np.testing.assert_array_equal, bounded, exact)


def test_what_is_not_finite_matters_most(mesh):
    g, drop = gradients(6), Drop(0.3, segment_bytes=SEGMENT)
    g[1, 300], g[2, 500] = np.nan, -np.inf
    result = np.asarray(run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), g))[0]
    assert np.isnan(result[300])
    assert result[500] == -np.inf


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_agreed_ranks_hide_nothing_that_is_not_finite_even_where_most_is(mesh, value):
    g = gradients(6)
    g[2, : 45 * WIDTH] = value  # 45 of 51 segments; the drop leaves out 15 segments
    result = np.asarray(run(mesh, lambda x: jaxcomm.psum(x, "data", drop=Drop(0.3, segment_bytes=SEGMENT)), g))[0]
    assert not np.isfinite(result[: 45 * WIDTH]).any()
    assert np.isfinite(result[45 * WIDTH :]).all() and not result[45 * WIDTH :].any()


def test_a_batch_on_each_rank_is_cut_row_by_row(mesh):
    drop = Drop(0.3, segment_bytes=SEGMENT)
    rows = np.stack([gradients(8), gradients(9)], axis=1)
    cut = lambda x: jaxcomm.psum(x, "data", drop=drop)  # noqa: E731
    both = np.asarray(run(mesh, jax.vmap(cut), rows))
    for i in range(2):
        np.testing.assert_array_equal(both[:, i], run(mesh, cut, rows[:, i]))


@pytest.mark.parametrize("policy", ["network", "deadline"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_within_a_process_no_network_loses_anything(mesh, check_vma, policy):
    tree = {"w": gradients(3), "b": np.ones((RANKS, 5), np.float16), "n": np.ones((RANKS, 900), np.int32)}
    drop = Drop(0.9, policy, segment_bytes=1024)
    sums = run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), tree, check_vma=check_vma)
    jax.tree.map(np.testing.assert_array_equal, sums, run(mesh, lambda x: jaxcomm.psum(x, "data"), tree))


@pytest.mark.parametrize(
    ("priorities", "calls"),
    [(None, [(None, 7)]), ("2", [(0, 1), (1, 6)]), ("8", [(0, 1), (1, 1), (2, 1), (7, 4)])],
)
def test_the_tensors_of_a_priority_are_one_call_and_later_priorities_are_the_last(mesh, monkeypatch, priorities, calls):
    if priorities:
        monkeypatch.setenv("JAXCOMM_UDP_PRIORITIES", priorities)
    tree = {f"layer {i}": gradients(i) for i in range(6)} | {"without": gradients(6)}
    given = {f"layer {i}": i if i < 3 else 57 + i for i in range(6)}
    drop = Drop(0.9, "network", segment_bytes=1024, priorities=given)
    cut = lambda x: jaxcomm.psum(x, "data", drop=drop)  # noqa: E731
    mapped = jax.make_jaxpr(lambda x: run(mesh, cut, x))(tree)
    found = [each.params["drop"] for each in equations(mapped.jaxpr) if each.params.get("drop")]
    assert [(each.priority, len(each.shares)) for each in found] == calls
    sums = run(mesh, cut, tree)
    jax.tree.map(np.testing.assert_array_equal, sums, run(mesh, lambda x: jaxcomm.psum(x, "data"), tree))


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_within_a_process_nothing_is_late_and_fed_back(mesh):
    transformation = bounded_drop("data", Drop(0.9, "deadline", segment_bytes=1024))

    def update(x):
        mean, state = transformation.update(x, transformation.init(x))
        return mean, state.left_out

    g = gradients(3)
    mean, left_out = run(mesh, update, g)
    np.testing.assert_array_equal(mean, run(mesh, lambda x: jaxcomm.pmean(x, "data"), g))
    assert not np.asarray(left_out).any()


@pytest.mark.parametrize("policy", ["network", "deadline"])
def test_what_a_network_loses_has_no_batches(mesh, policy):
    cut = lambda x: jaxcomm.psum(x, "data", drop=Drop(0.9, policy, segment_bytes=1024))  # noqa: E731
    with pytest.raises(NotImplementedError, match=r'"deadline" cannot run under jax\.vmap\.\n  Cure: use another'):
        run(mesh, jax.vmap(cut), np.stack([gradients(8), gradients(9)], axis=1))


def test_equal_drops_hash_alike_and_may_be_static_arguments():
    scaled = jax.jit(lambda x, drop: x * drop.bound, static_argnames="drop")
    for _ in range(2):
        scaled(1.0, drop=Drop(0.2, bounds={"kernel": 0.1}))
    assert scaled._cache_size() == 1


def test_floats_of_8_bits_are_summed_whole_as_without_a_loss(mesh):
    g = gradients().astype(jnp.float8_e4m3fn)
    ours = run(mesh, lambda x: jaxcomm.psum(x, "data", drop=Drop(0.3, segment_bytes=SEGMENT)), g)
    np.testing.assert_array_equal(ours, run(mesh, lambda x: jax.lax.psum(x, "data"), g))


@pytest.mark.parametrize("part", ["bounds", "priorities"])
def test_a_part_for_no_tensor_is_refused(mesh, part):
    drop = Drop(**{part: {"kernle": 0}})
    with pytest.raises(ValueError, match=rf"{part}\['kernle'\] names no tensor here; the tensors are 'bias', 'kernel'"):
        run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), {"kernel": gradients(), "bias": gradients()})


@pytest.mark.parametrize("groups", [[], [[0], [1, 2, 3]]])
@pytest.mark.parametrize("drop", [None, Drop()])
def test_means_are_of_groups_of_one_size(mesh, groups, drop):
    with pytest.raises(ValueError, match="for a mean or with a drop they must have one size"):
        run(mesh, lambda x: jaxcomm.pmean(x, "data", axis_index_groups=groups, drop=drop), gradients(), check_vma=False)


def test_bounds_by_name_take_the_place_of_the_common_one(mesh):
    tree = {"front": {"kernel": gradients(3)}, "back": {"kernel": gradients(4)}}
    drop = Drop(0.0, bounds={"front/kernel": 0.5}, segment_bytes=SEGMENT)
    bounded = run(mesh, lambda x: jaxcomm.psum(x, "data", drop=drop), tree)
    exact = run(mesh, lambda x: jaxcomm.psum(x, "data"), tree)
    np.testing.assert_array_equal(bounded["back"]["kernel"], exact["back"]["kernel"])
    assert (~by_segment(np.asarray(bounded["front"]["kernel"])[0]).any(axis=1)).sum() == 25


def test_groups_agree_among_themselves(mesh):
    g = gradients(5)
    groups, drop = [[0, 1], [2, 3]], Drop(0.3, segment_bytes=SEGMENT)
    results = np.asarray(
        run(mesh, lambda x: jaxcomm.pmean(x, "data", axis_index_groups=groups, drop=drop), g, check_vma=False)
    )
    for pair in groups:
        total = sum(importance(g[rank]) for rank in pair)
        gone = ~by_segment(results[pair[0]]).any(axis=1)
        assert gone.sum() == 15
        assert total[gone].max() <= total[~gone].min()
        kept = np.repeat(~gone, WIDTH)[:SIZE]
        np.testing.assert_allclose(results[pair[1]][kept], g[pair].mean(axis=0)[kept], rtol=1e-6)


def test_the_collective_carries_so_much_less(mesh):
    g = np.random.default_rng(0).standard_normal((RANKS, 2**18)).astype(np.float32)
    for bound in (0.1, 0.3):
        jaxcomm.reset_stats()
        jax.block_until_ready(run(mesh, lambda x, bound=bound: jaxcomm.psum(x, "data", drop=Drop(bound)), g))
        carried = sum(site["bytes"] * site["calls"] for site in jaxcomm.stats())
        assert carried / 2**20 == pytest.approx(1 - bound, abs=0.02)


def test_error_feedback_loses_nothing_in_the_long_run(mesh):
    transformation = bounded_drop("data", Drop(0.3, segment_bytes=SEGMENT), error_feedback=True)
    grads = np.stack([gradients(100 + step) for step in range(5)], axis=1)

    def steps(rows):
        one = lambda state, row: transformation.update(row, state)[::-1]  # noqa: E731
        return jax.lax.scan(one, transformation.init(jnp.zeros(SIZE)), rows)

    state, updates = run(mesh, steps, grads, check_vma=False)
    given = grads.astype(np.float64).mean(axis=0).sum(axis=0)
    arrived = np.asarray(updates, np.float64)[0].sum(axis=0) + np.asarray(state.left_out, np.float64).mean(axis=0)
    np.testing.assert_allclose(arrived, given, rtol=1e-4, atol=1e-5)
    assert np.asarray(state.left_out).any()


@pytest.mark.parametrize(("params", "grads"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_error_feedback_keeps_the_types_of_updates_and_state(mesh, params, grads):
    """Also in a scan with check_vma, where the carry's type says that the carry differs between ranks."""
    transformation = bounded_drop("data", Drop(0.3, segment_bytes=SEGMENT), error_feedback=True)

    def steps(row):
        state = transformation.init(jnp.zeros(SIZE, params))
        return jax.lax.scan(lambda state, _: transformation.update(row, state)[::-1], state, None, length=3)

    state, updates = run(mesh, steps, gradients().astype(jnp.dtype(grads)))
    assert (state.left_out.dtype, updates.dtype) == (params, grads)
    assert np.asarray(state.left_out, np.float32).any()


def test_what_is_alike_on_all_ranks_is_summed_too(mesh):
    g = gradients()[0]
    means = jax.shard_map(
        lambda x: jaxcomm.pmean(x, "data", drop=Drop(0.3, segment_bytes=SEGMENT)),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
    )
    mean = np.asarray(jax.jit(means)(g))
    np.testing.assert_allclose(mean[mean != 0], g[mean != 0], rtol=1e-6)


@pytest.mark.parametrize("policy", ["agreed", "network", "deadline"])
def test_it_is_not_differentiated(mesh, policy):
    def through(x):
        return jax.grad(lambda x: jaxcomm.psum(x, "data", drop=Drop(0.9, policy, segment_bytes=1024)).sum())(x)

    with pytest.raises(NotImplementedError, match=r"it cannot be differentiated itself\.\n  Cure: take the gradient"):
        run(mesh, through, gradients())


def test_what_is_no_loss_is_named(mesh):
    with pytest.raises(TypeError, match=r"jaxcomm\.psum: drop is 0\.1; .*\n  Cure: drop=Drop\(0\.1\)"):
        run(mesh, lambda x: jaxcomm.pmean(x, "data", drop=0.1), gradients())
    with pytest.raises(TypeError, match=r"jaxcomm\.train\.bounded_drop: drop is 0\.1"):
        bounded_drop("data", 0.1)
    with pytest.raises(NameError, match=r"jaxcomm\.train\.bounded_drop: there is no axis 'dat' here"):
        run(mesh, lambda x: train_once(bounded_drop("dat"), x), gradients())


def train_once(transformation, x):
    return transformation.update(x, transformation.init(x))[0]


def test_error_feedback_of_what_a_network_loses_is_refused():
    with pytest.raises(ValueError, match='error_feedback is for the policies "agreed" and "deadline"; "network"'):
        bounded_drop("data", Drop(policy="network"), error_feedback=True)


def test_it_chains_with_optimizers_and_gradient_accumulation(mesh):
    chain = optax.MultiSteps(optax.chain(bounded_drop("data", Drop(0.1, segment_bytes=SEGMENT)), optax.adam(0.1)), 2)
    grads = np.stack([gradients(7), gradients(8)], axis=1)

    def steps(rows):
        params, state = jnp.zeros(SIZE), chain.init(jnp.zeros(SIZE))
        for row in rows:
            updates, state = chain.update(row, state, params)
            params = optax.apply_updates(params, updates)
        return params

    results = np.asarray(run(mesh, steps, grads, check_vma=False))
    assert all(results[0].tobytes() == result.tobytes() for result in results)
    moved = by_segment(results[0]).any(axis=1)
    assert (~moved).sum() == 5


def test_donated_gradients_are_not_needed_any_more(mesh):
    drop = Drop(0.3, segment_bytes=SEGMENT)
    step = jax.shard_map(
        lambda x: jaxcomm.psum(x, "data", drop=drop),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    plain = np.asarray(jax.jit(step)(gradients().reshape(-1)))
    donated = np.asarray(jax.jit(step, donate_argnums=0)(jnp.asarray(gradients().reshape(-1))))
    assert plain.tobytes() == donated.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bound": 1.0}, "bound is 1.0; it is the share of a tensor, from 0 to below 1"),
        ({"bounds": {"a": -0.1}}, r"bounds\['a'\] is -0.1"),
        ({"bound": "10%"}, "bound is '10%'; it is the share of a tensor"),
        ({"bounds": [0.1]}, r"bounds is \[0.1\]; it maps tensors' names to shares"),
        ({"policy": "local"}, 'policy is "local"; it is "agreed", "network" or "deadline"'),
        ({"policy": "deadline", "segment_bytes": 512}, '512; with the policy "deadline" it must be 1024 or more'),
        ({"policy": "deadline", "seconds": 0}, 'seconds is 0; it is "auto" or a number above 0'),
        ({"policy": "deadline", "seconds": "soon"}, "seconds is 'soon'; it is \"auto\" or a number above 0"),
        ({"seconds": 0.1}, 'seconds is 0.1 with the policy "agreed"; only "deadline" has a time limit'),
        ({"policy": "network", "segment_bytes": 1016}, '1016; with the policy "network" it must be 1024 or more'),
        ({"priorities": ["a"]}, r"priorities is \['a'\]; it maps tensors' names to numbers"),
        ({"priorities": {"a": -1}}, r"priorities\['a'\] is -1; it is a whole number, 0 or more"),
        ({"priorities": {"a": 0.5}}, r"priorities\['a'\] is 0.5"),
        ({"priorities": {"a": True}}, r"priorities\['a'\] is True"),
        ({"segment_bytes": 12}, "segment_bytes is 12; it must be a positive multiple of 8"),
        ({"segment_bytes": 4096.0}, "segment_bytes is 4096.0; it must be a positive multiple of 8"),
    ],
)
def test_mistakes_in_the_loss_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Drop(), **change)
