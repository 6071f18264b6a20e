"""Users catch what jaxcomm reports: which error it was and whom it names, without reading JAX's text."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxcomm
from jaxcomm.collectives.grouped import group_sum
from jaxcomm.errors import DeadlineError, JaxcommError, MismatchError, from_jax, translated
from tests.collectives.lax_cases import MESH, P, sharded

X = np.ones((8, 1 << 10), np.float32)
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.fixture
def short_deadline() -> Iterator[None]:
    jaxcomm.init(deadline_s=0.5)
    yield
    jaxcomm.init(deadline_s=60)


def without(missing: tuple[int, ...], **options: Any) -> Any:
    """A step whose sum these ranks skip."""

    def step(x: Any) -> Any:
        skips = jnp.isin(lax.axis_index("d"), jnp.array(missing, int))
        return lax.cond(skips, lambda x: x, lambda x: jaxcomm.psum(x, "d", **options), x)

    return jax.jit(sharded(step, P("d"), P("d"), False))


@pytest.mark.usefixtures("short_deadline")
@pytest.mark.parametrize("missing", [(3,), (0, 6, 7)])
def test_a_missing_rank_is_caught_by_name_and_the_training_goes_on(missing: tuple[int, ...]) -> None:
    with pytest.raises(DeadlineError) as caught, translated():
        jax.block_until_ready(without(missing)(X))
    error = caught.value
    assert (error.name, error.axes, error.plan) == ("psum", "d", "direct")
    assert error.missing == missing
    assert error.waiting == tuple(sorted({*range(8)} - {*missing}))
    assert error.number is not None and f"psum #{error.number} over 'd'" in str(error)
    assert error.seconds is not None and error.seconds >= 0.5
    assert str(error).startswith("DeadlineError: ") and isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    with translated():
        np.testing.assert_array_equal(without(())(X), 8 * X)


@pytest.mark.usefixtures("short_deadline")
def test_where_the_result_is_used_next() -> None:
    result = without((2,))(X)
    for use in (np.asarray, jax.block_until_ready, jax.device_get):
        with pytest.raises(DeadlineError) as caught, translated():
            use(result)
        assert caught.value.missing == (2,)


@pytest.mark.usefixtures("short_deadline")
def test_of_two_groups_that_fail_together_one_is_named() -> None:
    with pytest.raises(DeadlineError) as caught, translated():
        jax.block_until_ready(without((1, 6), axis_index_groups=GROUPS)(X))
    assert (caught.value.missing, caught.value.waiting) in [((1,), (0, 2, 3)), ((2,), (0, 1, 3))]  # ranks in a group


def test_ranks_that_disagree_about_the_groups() -> None:
    mine = np.tile(np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32), (8, 1))
    mine[5] = [0, 1, 0, 1, 0, 1, 0, 1]
    step = jax.jit(sharded(lambda x, row: group_sum(x, row[0], "d"), (P("d"), P("d")), P("d"), False, MESH))
    with pytest.raises(MismatchError) as caught, translated():
        jax.block_until_ready(step(X, mine))
    error = caught.value
    assert (error.name, error.axes) == ("group_sum", "d")
    assert 5 in error.groups and len(error.groups) == 2
    assert error.groups == {rank: tuple(mine[rank].tolist()) for rank in error.groups}
    mine[5] = [0, 0, 9, 0, 1, 1, 1, 1]
    with pytest.raises(JaxcommError, match="rank 5 says that rank 2 is in group 9") as caught_too, translated():
        jax.block_until_ready(step(X, mine))
    assert type(caught_too.value) is JaxcommError


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError
    with pytest.raises(jaxcomm.PlanError), translated():
        jaxcomm.use_plan("no/such/plan.json")
    assert from_jax(RuntimeError("INTERNAL: something else of jaxcomm's user: DeadlineError: ")) is None
    assert from_jax(KeyError("jaxcomm: DeadlineError: ")) is None


LATE = "DeadlineError: psum bucket 2 of 3 #41 over 'host,nic' (16.5 MiB, plan 3f9a01c2): "


@pytest.mark.parametrize(
    ("text", "missing", "waiting", "seconds"),
    [
        (LATE + "rank 3 of 4 has not arrived after 60.0 s; 0,1,2 wait.", (3,), (0, 1, 2), 60.0),
        (LATE + "ranks 5,9 of the group 2,5,9 have not arrived after 1.5 s; 2 waits.", (5, 9), (2,), 1.5),
        (LATE + "ranks 1,7-9 of 128 have not arrived after 2.0 s; 0,2-5 wait.", (1, 7, 8, 9), (0, 2, 3, 4, 5), 2.0),
        (LATE + "rank 3 of 4 has not done op 17 after 2.0 s; rank 1 waits for it.", (3,), (1,), 2.0),
        (LATE + "rank 3 of 4 has not sent all messages after 2.0 s; 0,1 wait.", (3,), (0, 1), 2.0),
        (LATE + "ranks 1,2 of 4 found that others had given up.", (), (), None),
    ],
)
@pytest.mark.parametrize(
    "wrapped",
    [
        "DEADLINE_EXCEEDED: jaxcomm: {}",
        "INTERNAL: Error dispatching computation: jaxcomm: {} [type.googleapis.com/xla='{{}}']",
        "DEADLINE_EXCEEDED: jaxcomm: {0}; also on device 5: jaxcomm: {0}",
        "jaxcomm: group 'all' has failed: {}",
    ],
)
def test_the_sentences_of_the_core_as_xla_wraps_them(
    text: str, missing: tuple[int, ...], waiting: tuple[int, ...], seconds: float | None, wrapped: str
) -> None:
    error = from_jax(RuntimeError(wrapped.format(text)))
    assert isinstance(error, DeadlineError)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (one.missing, one.waiting, one.seconds) == (missing, waiting, seconds)
        if missing:
            assert (one.name, one.number, one.axes, one.plan) == ("psum bucket 2 of 3", 41, "host,nic", "3f9a01c2")


@pytest.mark.parametrize("places", [("", ""), (" (process 1 on node-b)", " (process 0 on node-a)")])
def test_ranks_that_are_in_different_calls(places: tuple[str, str]) -> None:
    ours = "psum over 'data', f32[2] (8 B), plan none, at train.py:50"
    theirs = "pmax over 'data', f32[1] (4 B), plan none, at train.py:60"
    text = f"MismatchError: psum #3 over 'data' (8 B, plan none): rank 1{places[0]} is in {theirs}; "
    text += f"rank 0{places[1]} is in {ours}.\n"
    error = from_jax(RuntimeError(f"INVALID_ARGUMENT: jaxcomm: {text}"))
    assert isinstance(error, MismatchError)
    assert (error.name, error.axes, error.groups) == ("psum", "data", {})
    assert error.calls == {1: theirs, 0: ours}
