"""Collectives that XLA's permutes run: the core's bits, transformations, and plans that name this executor."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomm
from jaxcomm import schedules
from jaxcomm.collectives.permutes import lowering as permutes
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile import ScheduleName
from jaxcomm.report.plan.explanation import explanation
from tests.collectives import test_partial_manual, test_transforms
from tests.collectives.lax_cases import MESH, MESH_2D, P, X, compare, sharded
from tests.collectives.permuted import DTYPES, SIZES, check
from tests.collectives.plans import SPECS, make, with_halves

HOSTS = [0, 0, 0, 1, 1, 1, 2, 2]

KINDS: dict[str, Callable[[int], Any]] = {
    "ring": schedules.ring,
    "halving_doubling": schedules.halving_doubling,
    "direct": schedules.direct,
    "broadcast": lambda n: schedules.broadcast(n, n // 2),
    "straggler": lambda n: schedules.straggler(n, n - 1, 2 * n),
    "direct_join": lambda n: schedules.direct_join(n, 0, 2 * (n - 1)),
    "late_join": lambda n: schedules.late_join(n, 0, 5),
    "hybrid": lambda n: schedules.hybrid(n, 0, 2 * n, n),
    "stragglers": lambda n: schedules.stragglers(n, range(min(2, n - 1)), n),
    "chain": lambda n: schedules.chain(n, [n // 2, 0][-min(2, n - 1) :], n),
    "hierarchical": lambda n: schedules.hierarchical(
        schedules.HostLinks.of([i // 2 for i in range(n)], "rank", 2.0), 7
    ),
}


@pytest.fixture
def xla(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Makes XLA's collectives run all calls. Yields the names of the collectives that ran in this way."""
    seen: list[str] = []

    def spy(collective: Any, programs: Any, *leaves: Any) -> Any:
        seen.append(collective.name)
        return run(collective, programs, *leaves)

    run = permutes._run
    monkeypatch.setattr(permutes, "_run", spy)
    monkeypatch.setenv("JAXCOMM_EXECUTOR", "xla")
    yield seen


@pytest.mark.parametrize("index", range(len(KINDS)), ids=list(KINDS))
def test_bits_are_those_of_the_schedules_program(index: int) -> None:
    """Tests some ranks, types and sizes per schedule; `python -m tests.collectives.permuted` tests all of them."""
    make_schedule = list(KINDS.values())[index]
    sizes, dtypes = itertools.cycle(SIZES), itertools.cycle(DTYPES)
    for _ in range(index):
        next(sizes), next(dtypes)
    for ranks in (2 + index % 3, 5, 8):
        schedule = make_schedule(ranks)
        check(schedule, next(dtypes), next(sizes))
    check(schedule, "bfloat16", 1003, most=max(1, schedule.num_chunks // 8), reduction="max")


@pytest.mark.slow
def test_more_ranks_than_a_host_has_devices() -> None:
    """Some schedules of 12 and 16 ranks, some of which have loops."""
    script = (
        "from tests.collectives.permuted import check, use\n"
        "use(16)\n"
        "from tests.collectives.test_permutes import KINDS\n"
        "for n, names in (12, ['straggler', 'direct', 'late_join']), (16, ['ring', 'stragglers', 'hierarchical']):\n"
        "    for name in names: check(KINDS[name](n), 'float32', 1003)\n"
        "print('same bits')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280
    )
    assert done.stdout == "same bits\n", done.stderr


def asking(plan: Plan, entries: str = "collectives") -> Plan:
    """The plan with the executor "xla" in all its entries."""
    document = plan.model_dump(exclude={"hash"})
    for entry in document[entries]:
        entry["executor"] = "xla"
    return Plan.model_validate(document)


def results(plan: Plan, body: Callable[..., Any], *operands: Any) -> tuple[list[np.ndarray[Any, Any]], str]:
    """The results of each device, and the program's text."""
    with jaxcomm.use_plan(plan):
        step = jax.jit(sharded(lambda *xs: body(*xs), P("d"), P("d"), False))
        compiled = step.lower(*operands).compile()
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*operands))], compiled.as_text()


@pytest.mark.parametrize("name", SPECS)
def test_a_plans_entry_has_xla_run_it_with_the_cores_bits(name: str, no_plan: None) -> None:
    plan = make((0, None, SPECS[name]))
    leaves = [
        np.random.default_rng(i).standard_normal((8, size)).astype(np.float32) for i, size in enumerate((301, 5, 64))
    ]
    ours, text = results(plan, lambda *xs: jaxcomm.psum(xs, "d"), *leaves)
    theirs, by_xla = results(asking(plan), lambda *xs: jaxcomm.psum(xs, "d"), *leaves)
    assert "jaxcomm_collective" in text and "collective-permute" not in text
    assert "jaxcomm_collective" not in by_xla and "collective-permute" in by_xla and "all-reduce" not in by_xla
    for mine, other in zip(theirs, ours, strict=True):
        assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "direct"])
def test_halves_of_a_plan(name: str, no_plan: None) -> None:
    plan = with_halves(make((0, None, SPECS["ring"])), (0, None, {"kind": name}), hosts=HOSTS)

    def body(x: Any) -> Any:
        return jaxcomm.psum_scatter(x.reshape(8, -1), "d", tiled=True), jaxcomm.all_gather(x, "d", tiled=True)

    x = np.random.default_rng(0).standard_normal((8, 8 * 33)).astype(np.float32)
    found, text = results(asking(plan, "halves"), body, x)
    assert "collective-permute" in text and "all-gather" not in text and "reduce-scatter" not in text
    np.testing.assert_allclose(found[0].ravel(), x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], np.tile(x, (8, 1)))


@pytest.mark.parametrize("case", test_transforms.CASES, ids=lambda case: case.__name__)
def test_transformations(case: Callable[..., Any], xla: list[str]) -> None:
    compare(lambda ops: case(ops, True))


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "tree of several types": lambda ops, x: ops.psum(
        {"a": x, "b": x.astype(jnp.bfloat16), "c": x > 0, "d": x[:0]}, "d"
    ),
    "maximum": lambda ops, x: ops.pmax((x, x.astype(jnp.int8)), "d"),
    "groups": lambda ops, x: ops.psum(x, "d", axis_index_groups=[[0, 3, 5, 6], [1, 2, 4, 7]]),
    "groups of unlike sizes": lambda ops, x: ops.pmin(x, "d", axis_index_groups=[[7, 0], [3], [5, 1, 2], [4, 6]]),
    "scatter in groups": lambda ops, x: ops.psum_scatter(
        jnp.tile(x, (4, 1)), "d", axis_index_groups=[[0, 3, 5, 6], [1, 2, 4, 7]], tiled=True
    ),
    "gather": lambda ops, x: ops.all_gather((x, x[:, 1:] > 0), "d", axis=1, tiled=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, xla: list[str]) -> None:
    compare(lambda ops: jax.jit(sharded(lambda x: CALLS[name](ops, x), P("d"), P("d"), False))(X))
    assert xla


def test_several_axes_as_one(xla: list[str]) -> None:
    def case(ops: Any) -> Any:
        body = lambda x: (ops.psum(x, ("b", "a")), ops.all_gather(x, ("a", "b"), to="varying"))  # noqa: E731
        return jax.jit(sharded(body, P("a", "b"), (P(), P("a", "b")), True, MESH_2D))(X)

    compare(case)
    assert xla == ["psum", "all_gather"]


def test_a_donated_buffer_holds_the_sum(xla: list[str]) -> None:
    step = jax.jit(sharded(lambda x: jaxcomm.psum(x, "d"), P("d"), P("d"), False), donate_argnums=0)
    x = jax.ShapeDtypeStruct((8, 1 << 20), jnp.float32, sharding=jax.NamedSharding(MESH, P("d")))
    assert step.lower(x).compile().memory_analysis().alias_size_in_bytes == 4 << 20


@pytest.mark.parametrize("case", test_partial_manual.CASES)
def test_nothing_is_gathered_over_axes_that_xla_partitions(case: str, xla: list[str]) -> None:
    operands = [test_partial_manual.place(*each, MESH_2D) for each in test_partial_manual.CASES[case][1]]
    compare(lambda ops: test_partial_manual.step(case, ops)(*operands))
    text = test_partial_manual.step(case, jaxcomm).lower(*operands).compile().as_text()
    assert "collective-permute" in text and "jaxcomm_collective" not in text
    assert not re.findall(r"= \S+ all-gather(?:-start)?\(", text)
    assert xla


def test_late_join_sums_the_early_ranks_in_a_group_of_their_own(no_plan: None) -> None:
    plan = asking(make((0, None, {"kind": "late_join", "late": "straggler", "chunks": 3})))
    x = np.random.default_rng(0).standard_normal((8, 1003)).astype(np.float32)
    (found,), text = results(plan, lambda x: jaxcomm.psum(x, "d"), x)
    np.testing.assert_allclose(found, np.tile(x.sum(0), (8, 1)), rtol=1e-5, atol=1e-5)
    assert len({row.tobytes() for row in found}) == 1
    assert "replica_groups={{0,1,2,4,5,6,7},{3}}" in text
    whole = np.arange(8 * 1003).reshape(8, 1003).astype(np.int32)
    (found,), _ = results(plan, lambda x: jaxcomm.pmax(x, "d"), whole)
    np.testing.assert_array_equal(found, np.tile(whole.max(0), (8, 1)))


@pytest.mark.slow
def test_late_join_runs_under_check_vma_by_permutes_and_is_bounded(
    no_plan: None, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(0).standard_normal((8, 1003)).astype(np.float32)
    for chunks, words in (3, ""), (65536, "late_join of 8 ranks and 65536 chunks takes 262144 different permutes"):
        plan = asking(make((0, None, {"kind": "late_join", "late": "straggler", "chunks": chunks})))
        for checks in (True, False) if chunks == 3 else (False,):
            with jaxcomm.use_plan(plan):
                step = jax.shard_map(
                    lambda x: jaxcomm.psum(x, "d"), mesh=MESH, in_specs=P("d"), out_specs=P(), check_vma=checks
                )
                found = jax.jit(step)(x)
            np.testing.assert_allclose(found[0], x.sum(0), rtol=1e-5, atol=1e-5)
        assert words in caplog.text


def test_a_plan_leaves_some_sizes_to_lax(no_plan: None) -> None:
    plan = make((0, 999, {"kind": "ring"}), (1000, None, {"kind": "lax"}))
    plan = with_halves(plan, (0, None, {"kind": "lax"}), hosts=HOSTS)

    def body(x: Any) -> Any:
        return jaxcomm.psum(x, "d"), jaxcomm.pmax(x, "d"), jaxcomm.psum_scatter(x.reshape(8, -1), "d", tiled=True)

    x = np.random.default_rng(0).standard_normal((8, 8 * 33)).astype(np.float32)
    found, text = results(plan, body, x)
    assert text.count(" all-reduce(") >= 2 and "reduce-scatter" in text
    assert "jaxcomm_collective" not in text and "collective-permute" not in text
    np.testing.assert_allclose(found[0], np.tile(x.sum(0), (8, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], np.tile(x.max(0), (8, 1)))
    _, text = results(plan, lambda x: jaxcomm.psum(x, "d"), x[:, :249])
    assert "jaxcomm_collective" in text and " all-reduce(" not in text


def test_a_plan_has_permutes_run_on_tpus_where_it_asks(no_plan: None) -> None:
    def text(plan: Plan) -> str:
        with jaxcomm.use_plan(plan):
            step = jax.jit(sharded(lambda x: jaxcomm.psum(x, "d"), P("d"), P(), True))
            return step.trace(X).lower(lowering_platforms=("tpu",)).as_text()

    ring = make((0, None, SPECS["ring"]))
    assert "collective_permute" in text(asking(ring)) and "all_reduce" not in text(asking(ring))
    assert "collective_permute" not in text(ring) and "all_reduce" in text(ring)


def test_late_joins_run_in_rounds_on_tpus_whose_groups_are_alike(no_plan: None) -> None:
    with jaxcomm.use_plan(single(timed_spec(ScheduleName(kind="late_join", chunks=4)), 8, 3, "xla")):
        step = jax.jit(sharded(lambda x: jaxcomm.psum(x, "d"), P("d"), P("d"), False))
        text = step.trace(X).lower(lowering_platforms=("tpu",)).as_text()
    assert "collective_permute" in text and "all_reduce" not in text


def test_unreduced_values_are_scattered_by_permutes(monkeypatch: pytest.MonkeyPatch, no_plan: None) -> None:
    monkeypatch.setenv("JAXCOMM_EXECUTOR", "xla")
    with jax.set_mesh(jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))):
        x, w = jax.device_put(np.arange(16.0).reshape(8, 2), P("d")), jax.device_put(np.ones((8, 3)), P("d"))
        gather = jax.shard_map(
            lambda w: jaxcomm.all_gather(w, "d", tiled=True, to="reduced"),
            in_specs=P("d"),
            out_specs=P(None, reduced={"d"}),
        )
        step = jax.jit(jax.grad(lambda w: jnp.einsum("ij,kl->il", x, gather(w)).sum())).lower(w).compile()
        assert "collective-permute" in step.as_text() and "reduce-scatter" not in step.as_text()
        np.testing.assert_allclose(step(w), np.full((8, 3), x.sum()))


def test_explain_names_the_executor() -> None:
    plan = make((0, None, SPECS["ring"]))
    sentence = "Executor: XLA's own collectives, without a deadline"
    assert sentence in explanation(asking(plan))
    assert sentence not in explanation(plan)


def test_an_unknown_executor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCOMM_EXECUTOR", "cuda")
    with pytest.raises(JaxcommError, match=r"JAXCOMM_EXECUTOR is 'cuda'\.\n  Cure: set it to xla or core"):
        jax.jit(sharded(lambda x: jaxcomm.psum(x, "d"), P("d"), P(), True)).lower(X)


def test_the_core_is_not_timed_where_xla_runs_all_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCOMM_EXECUTOR", "xla")
    cure = r"XLA's collectives run all sums; .*\n  Cure: unset JAXCOMM_EXECUTOR; .* jaxcomm profile --executor xla"
    with pytest.raises(JaxcommError, match=cure):
        permutes.require_core()


def test_a_plan_that_does_not_ask_leaves_calls_to_the_core(no_plan: None) -> None:
    assert "JAXCOMM_EXECUTOR" not in os.environ
    _, text = results(make((0, None, SPECS["ring"])), lambda x: jaxcomm.psum(x, "d"), X)
    assert "collective-permute" not in text
