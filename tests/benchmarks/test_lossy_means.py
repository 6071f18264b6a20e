"""Means of gradients of which ranks lose segments on their own: what they lose, and what is averaged."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomm.train import Drop
from tests.recipes.recipe_scripts import ROOT
from tests.train.gradient_cases import RANKS, SEGMENT, SIZE, WIDTH, by_segment, gradients, importance, make_mesh, run


@pytest.fixture(scope="module")
def lossy_means():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import lossy_means

        return lossy_means


def means(lossy_means, drop, loses, g, steps=1, check_vma=True):
    """The first steps' means on all ranks."""
    update = lossy_means.lossy_mean("data", drop, loses).update
    lossy = lambda x: jax.lax.map(lambda step: update(x, step)[0], jnp.arange(steps, dtype=jnp.uint32))  # noqa: E731
    return jax.tree.map(np.asarray, run(make_mesh(), lossy, g, check_vma=check_vma))


def mean_of(g, keep):
    """Each segment's mean over the ranks that kept it."""
    mask = np.repeat(keep, WIDTH, axis=1)[:, :SIZE]
    return np.where(mask.any(axis=0), (g * mask).sum(axis=0) / np.maximum(mask.sum(axis=0), 1), 0)


@pytest.mark.parametrize(("bound", "check_vma"), [(0.05, True), (0.1, True), (0.3, True), (0.3, False), (0.9, True)])
def test_each_rank_leaves_out_its_least_segments_below_the_median(lossy_means, monkeypatch, bound, check_vma):
    monkeypatch.setattr(lossy_means, "STRIDE", 1)  # the sample is everything
    g = gradients(1)
    found = means(lossy_means, Drop(bound, segment_bytes=SEGMENT), "local", g, check_vma=check_vma)[:, 0]
    assert all(found[0].tobytes() == each.tobytes() for each in found)
    keep = np.ones((RANKS, 51), bool)
    for rank, row in enumerate(g):
        matter = importance(row)
        median = np.sort(np.abs(row))[(SIZE - 1) // 2]
        least = np.argsort(matter)[: int(bound * SIZE / WIDTH)]
        keep[rank, least[matter[least] < median]] = False
    assert (~keep).any()
    np.testing.assert_allclose(found[0], mean_of(g, keep), rtol=1e-5, atol=1e-7)


def test_nothing_is_left_out_that_is_not_below_the_median(lossy_means):
    g = np.full((RANKS, SIZE), np.nan, np.float32)
    assert np.isnan(means(lossy_means, Drop(0.3, segment_bytes=SEGMENT), "local", g)).all()


@pytest.mark.parametrize("check_vma", [True, False])
def test_at_random_ranks_lose_segments_independently_in_each_step(lossy_means, check_vma):
    powers = np.repeat(np.array([[1], [2], [4], [8]], np.float32), SIZE, axis=1)  # a sum of them says who kept it
    found = means(lossy_means, Drop(0.3, segment_bytes=SEGMENT), "random", powers, 20, check_vma)
    assert all(found[0].tobytes() == each.tobytes() for each in found)
    kept_by = {mean_of_few(who): who for who in range(16)}
    segments = np.stack([by_segment(step)[:, 0] for step in found[0]])
    who = np.vectorize(lambda mean: kept_by[round(float(mean), 4)])(segments)
    lost = np.stack([who >> rank & 1 == 0 for rank in range(RANKS)], axis=1)  # 20 steps, 4 ranks, 51 segments
    assert lost.mean() == pytest.approx(0.3, abs=0.03)  # 4080 draws, standard deviation 0.7 %
    assert lost[:, 0].mean(axis=0).max() < 1  # no segment is spared or doomed,
    assert (lost[:, 0] & lost[:, 1]).mean() == pytest.approx(0.09, abs=0.03)  # the ranks' losses are independent,
    assert len({each.tobytes() for each in lost}) == 20  # and every step loses others


def mean_of_few(who):
    kept = [2**rank for rank in range(RANKS) if who >> rank & 1]
    return round(sum(kept) / len(kept), 4) if kept else 0.0


def test_at_random_even_the_only_segment_of_a_tensor_is_lost_but_no_integer(lossy_means):
    tree = {"bias": np.ones((RANKS, 4), np.float32), "count": np.ones((RANKS, 4), np.int32)}
    found = means(lossy_means, Drop(0.9), "random", tree, 10)
    assert {*found["bias"].ravel().tolist()} == {0.0, 1.0}
    assert (found["count"] == 1).all()
