"""Users catch jaxcomm's errors by type and read the named ranks from fields, without parsing JAX's text."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

import jaxcomm
from jaxcomm import errors
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
    """A step in which the ranks `missing` skip the sum."""

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
    assert (caught.value.missing, caught.value.waiting) in [((1,), (0, 2, 3)), ((2,), (0, 1, 3))]  # ranks of one group


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


LATE = "DeadlineError: psum bucket 2 of 3 #41 over 'host,nic' (16.5 MiB, plan 3f9a01c2): rank 3 of 4 has not arrived"
CALL = {"name": "psum bucket 2 of 3", "number": 41, "axes": "host,nic", "plan": "3f9a01c2"}
RANKS = {"missing": [3], "waiting": [0, 1, 2], "seconds": 60.0}


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any]], None]:
    """Returns a function that installs two stub cores, of which the second has reported a failure."""

    def keep(message: str, record: dict[str, Any]) -> None:
        failure = {"message": message, "record": record}
        cores = (lambda _: None, lambda text: failure if text.startswith(message) else None)
        monkeypatch.setattr(errors, "_lookups", cores)

    return keep


@pytest.mark.parametrize(
    ("fields", "missing", "waiting", "seconds"), [(RANKS, (3,), (0, 1, 2), 60.0), ({}, (), (), None)]
)
@pytest.mark.parametrize(
    "wrapped",
    [
        "DEADLINE_EXCEEDED: jaxcomm: {}",
        "INTERNAL: Error dispatching computation: jaxcomm: {} [type.googleapis.com/xla='{{}}']",
        "DEADLINE_EXCEEDED: jaxcomm: {0}; also on device 5: jaxcomm: {0}",
        "jaxcomm: {}",
    ],
)
def test_records_are_found_however_xla_wraps_the_text(
    keep: Callable[[str, dict[str, Any]], None],
    wrapped: str,
    fields: dict[str, Any],
    missing: tuple[int, ...],
    waiting: tuple[int, ...],
    seconds: float | None,
) -> None:
    keep(LATE, {"error": "DeadlineError"} | CALL | fields)
    error = from_jax(RuntimeError(wrapped.format(LATE)))
    assert isinstance(error, DeadlineError)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (one.missing, one.waiting, one.seconds) == (missing, waiting, seconds)
        assert (one.name, one.number, one.axes, one.plan) == ("psum bucket 2 of 3", 41, "host,nic", "3f9a01c2")
        assert str(one) == LATE


def test_ranks_that_are_in_different_calls(keep: Callable[[str, dict[str, Any]], None]) -> None:
    ours = "psum over 'data', f32[2] (8 B), plan none, at train.py:50"
    theirs = "pmax over 'data', f32[1] (4 B), plan none, at train.py:60"
    call = {"name": "psum", "axes": "data", "plan": "none", "number": 3}
    keep("MismatchError: psum #3", {"error": "MismatchError"} | call | {"calls": [[1, theirs], [0, ours]]})
    error = from_jax(RuntimeError("INVALID_ARGUMENT: jaxcomm: MismatchError: psum #3"))
    assert isinstance(error, MismatchError)
    assert (error.name, error.axes, error.groups) == ("psum", "data", {})
    assert error.calls == {1: theirs, 0: ours}


def test_a_failure_of_another_process_has_its_text_only(keep: Callable[[str, dict[str, Any]], None]) -> None:
    keep(LATE, {"error": "DeadlineError"})
    for wrapped in ("INTERNAL: jaxcomm: rank 3 is gone", "INTERNAL: jaxcomm: rank 3 is gone: jaxcomm: rank 3 is gone"):
        error = from_jax(RuntimeError(wrapped))
        assert type(error) is JaxcommError and str(error) == "rank 3 is gone"


@pytest.mark.usefixtures("short_deadline")
def test_a_text_that_xla_cuts_still_names_the_ranks() -> None:
    axis = "a" * 600
    mesh = Mesh(np.array(jax.devices()[:4]), (axis,))
    late = sharded(lambda x: _without_rank_2(x, axis), P(axis), P(axis), False, mesh)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(late)(X[:4]))
    whole = str(caught.value).partition("jaxcomm: ")[2]
    error = from_jax(RuntimeError("UNKNOWN: MPI error: jaxcomm: " + whole[:502] + " [type]"))
    assert isinstance(error, DeadlineError)
    assert (error.missing, error.waiting, error.axes) == ((2,), (0, 1, 3), axis)
    assert str(error) == whole


def _without_rank_2(x: Any, axis: str) -> Any:
    return lax.cond(lax.axis_index(axis) == 2, lambda x: x, lambda x: jaxcomm.psum(x, axis), x)


@pytest.mark.usefixtures("short_deadline")
def test_failures_that_are_outstanding_together_stay_apart() -> None:
    ranks = [(1,), (2, 5), (0, 6, 7)]
    results = [without(missing)(X) for missing in ranks]

    def wait(result: Any) -> tuple[int, ...]:
        with pytest.raises(DeadlineError) as caught, translated():
            jax.block_until_ready(result)
        return caught.value.missing

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(wait, reversed(results))] == [*reversed(ranks)]
