"""Active plans: the schedule of each call, the ways to set a plan, and the errors of an invalid plan."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomm
from jaxcomm import ffi, log, schedules
from jaxcomm.collectives import active_plan, choice
from jaxcomm.plan import Plan
from jaxcomm.program.program import compile
from jaxcomm.schedules import Template
from tests.collectives.lax_cases import MESH, MESH_2D, P, sharded
from tests.collectives.plans import RING, SPECS, make, plans_seen, selecting

pytestmark = pytest.mark.usefixtures("no_plan")
X = np.random.default_rng(1).standard_normal((8, 1000)).astype(np.float32)


def total(x: Any, **options: Any) -> Any:
    return jax.block_until_ready(jax.jit(sharded(lambda x: jaxcomm.psum(x, "d", **options), P("d"), P(), True))(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
@pytest.mark.parametrize("kind", SPECS)
def test_every_schedule_computes_the_sum(kind: str, dtype: str) -> None:
    plan = make((0, None, SPECS[kind]))
    x = (X * 10).astype(dtype)
    result = total({"x": x, "n": x[:, :3]}, plan=plan)
    wide = np.complex128 if dtype == "complex64" else np.float64
    for ours, operand in ((result["x"], x), (result["n"], x[:, :3])):
        tolerance = 2e-1 if dtype == "bfloat16" else 1e-4
        np.testing.assert_allclose(
            np.asarray(ours).astype(wide), operand.astype(wide).sum(0, keepdims=True), rtol=tolerance, atol=tolerance
        )
        assert len({np.asarray(shard.data).tobytes() for shard in ours.addressable_shards}) == 1
    assert plans_seen() == {plan.hash[:8]}


@pytest.mark.parametrize("kind", ["stragglers", "chain"])
def test_two_late_ranks_get_the_sum_of_lax(kind: str) -> None:
    x = np.random.default_rng(2).integers(-1000, 1000, (8, 4097)).astype(np.float32)  # sums are exact in any order

    def late(x: Any) -> Any:
        rank = jax.lax.axis_index("d")
        return ffi.delay(x, jnp.where(rank == 6, 0.02, jnp.where(rank == 3, 0.04, 0.0)))

    def run(psum: Any) -> Any:
        return jax.jit(sharded(lambda x: psum(late(x)), P("d"), P(), True))(x)

    ours = run(lambda x: jaxcomm.psum(x, "d", plan=make((0, None, SPECS[kind]))))
    theirs = run(lambda x: jax.lax.psum(x, "d"))
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert len({np.asarray(shard.data).tobytes() for shard in ours.addressable_shards}) == 1


@pytest.mark.parametrize(("lateness_s", "share"), [(1e-12, 0.0), (1e3, 0.9)], ids=["late enough", "not late enough"])
def test_calls_run_what_the_lateness_before_them_says(lateness_s: float, share: float) -> None:
    """In each of two groups, rank 3's lateness selects the next call's schedule. First calls run the late schedule."""
    plan = selecting(SPECS["ring"], SPECS["straggler"], lateness_s, ranks=4)
    step = jax.jit(sharded(lambda x: jaxcomm.psum(x, "a", plan=plan), P("a", "b"), P(None, "b"), True, MESH_2D))
    whole = (X * 10).round()
    for _ in range(30):
        np.testing.assert_array_equal(np.asarray(step(whole))[0], whole.reshape(4, 2, 1000).sum(0)[0])
    (site,) = (site for site in ffi.sites() if site["calls"])
    late = sum(row[3] > max(row[:3]) for row in site["arrivals"])
    assert site["calls"] == 60
    if share:
        assert share * 60 <= site["early_calls"] < 60
    else:
        assert 60 - site["early_calls"] >= 0.5 * late


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 10**6])
def test_each_size_has_its_schedule(nbytes: int) -> None:
    plan = make((0, 4095, SPECS["direct"]), (4096, None, SPECS["straggler"]))
    chosen = choice.choose(choice.SizedCall("all_reduce", 8, nbytes, "float32", active_plan.plan_hash(plan)))
    assert chosen.schedules == (ffi.register_program(compile(plan.schedule_for(nbytes))),)


def test_without_a_plan_all_run_directly() -> None:
    total(X)
    assert plans_seen() == {"direct"}
    for kind in ("all_reduce", "reduce_scatter", "all_gather"):
        assert choice.choose(choice.SizedCall(kind, 8, 10**9, None, "")) == choice.Choice((f"{kind}/8",), "direct")


def test_a_plan_for_other_element_types_leaves_the_call_direct() -> None:
    total(X, plan=make((0, None, SPECS["ring"]), dtypes=["bfloat16"]))
    assert plans_seen() == {"direct"}


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    jaxcomm.plan.save(RING, path)
    total(X, plan=path)
    with jaxcomm.use_plan(str(path)):
        total(X)
    assert plans_seen() == {RING.hash[:8]}


def test_a_plan_counts_in_a_with_statement_and_from_a_setter() -> None:
    other = make((0, None, SPECS["halving_doubling"]))
    seen = []

    def note() -> None:
        seen.append(active_plan.plan_hash(None))

    with jaxcomm.use_plan(RING):
        note()
        with jaxcomm.use_plan(other):
            note()
            with jaxcomm.use_plan(None):
                note()
        note()
    note()
    scope = jaxcomm.use_plan(other)
    note()
    with jaxcomm.use_plan(RING):
        note()
    note()
    with scope:
        note()
    note()
    with scope:
        note()
        with scope:
            note()
        note()
    note()
    assert seen[:5] == [RING.hash, other.hash, "", RING.hash, ""]
    assert seen[5:] == [other.hash, RING.hash, other.hash, other.hash, "", *[other.hash] * 3, ""]


def test_threads_do_not_see_each_others_plans() -> None:
    other = make((0, None, SPECS["halving_doubling"]))
    seen: dict[str, list[str]] = {"main": [], RING.hash: [], other.hash: []}
    together = threading.Barrier(3, timeout=30)

    def note(name: str) -> None:
        together.wait()
        seen[name].append(active_plan.plan_hash(None))
        together.wait()

    def work(plan: Plan) -> None:
        with jaxcomm.use_plan(plan):
            note(plan.hash)
        note(plan.hash)
        jaxcomm.use_plan(plan)
        note(plan.hash)

    threads = [threading.Thread(target=work, args=(plan,)) for plan in (RING, other)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        note("main")
    for thread in threads:
        thread.join()
    assert seen == {"main": ["", "", ""], **{hash_: [hash_, "", hash_] for hash_ in (RING.hash, other.hash)}}


def test_one_use_plan_serves_several_threads_and_nested_statements() -> None:
    other = make((0, None, SPECS["halving_doubling"]))
    seen = []

    def note() -> None:
        seen.append(active_plan.plan_hash(None))

    def work() -> None:
        with shared:
            note()
            with shared:
                note()
            note()
        note()

    with jaxcomm.use_plan(other):
        shared = jaxcomm.use_plan(RING)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [RING.hash, RING.hash, RING.hash, ""]
        seen.clear()
        work()
        assert seen == [RING.hash, RING.hash, RING.hash, other.hash]


def test_init_sets_the_plan_of_all_threads() -> None:
    def elsewhere() -> str:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(active_plan.plan_hash(None)))
        thread.start()
        thread.join()
        return found[0]

    jaxcomm.use_plan(None)
    jaxcomm.init(plan=RING)
    assert (active_plan.plan_hash(None), elsewhere()) == (RING.hash, RING.hash)
    assert [(plan["axes"], plan["plan"]) for plan in jaxcomm.stats().plans] == [([], RING.hash[:8])]
    jaxcomm.init(plan={})
    assert (active_plan.plan_hash(None), elsewhere()) == ("", "")
    assert jaxcomm.stats().plans == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"a": 1}, r"plan\['a'\] is 1, of type int\.\n  Cure: give the path of a plan file"),
        (7, r"plan is 7, of type int\.\n  Cure:"),
        ({("a", "b"): [RING]}, r"plan\[\('a', 'b'\)\] is \[Plan\("),
    ],
)
def test_what_is_no_plan_is_refused(plan: Any, message: str) -> None:
    jaxcomm.use_plan(RING)
    for attempt in (jaxcomm.use_plan, lambda plan: jaxcomm.init(plan=plan), lambda plan: total(X, plan=plan)):
        with pytest.raises(jaxcomm.JaxcommError, match=message):
            attempt(plan)
    assert active_plan.plan_hash(None) == RING.hash


def test_a_step_is_compiled_once_for_each_plan() -> None:
    traces = []

    @jax.jit
    def step(x: Any) -> Any:
        traces.append(active_plan.plan_hash(None)[:8])
        return sharded(lambda x: jaxcomm.pmean(x, "d"), P("d"), P(), True)(x)

    same = make((0, None, SPECS["ring"]))
    for plan in (None, RING, None, same, RING, None):
        with jaxcomm.use_plan(plan):
            np.testing.assert_allclose(step(X), X.mean(0, keepdims=True), rtol=1e-4, atol=1e-5)
    assert traces == ["", RING.hash[:8]]
    assert plans_seen() == {"direct", RING.hash[:8]}


def test_a_plan_leads_through_gradients_and_batches() -> None:
    def loss(w: Any, x: Any) -> Any:
        rows = jax.vmap(lambda row: jaxcomm.psum(row, "d", plan=RING), in_axes=1, out_axes=1)(x * w)
        return (rows**2).sum()

    step = jax.jit(jax.grad(sharded(loss, (P(), P("d")), P(), False)))
    jax.block_until_ready(step(np.float32(2), X[:, :5]))
    assert plans_seen() == {RING.hash[:8]}


FOUR = make((0, None, SPECS["ring"]), ranks=4)
TWO = make((0, None, SPECS["ring"]), ranks=2)


def both_axes(**options: Any) -> dict[str, str]:
    """Sums over each axis and over both axes of the 4 × 2 mesh. Returns the plan of each call, keyed by axes."""

    def body(x: Any) -> Any:
        return [jaxcomm.psum(x, axis, **options) for axis in ("a", "b", ("a", "b"))]

    step = jax.jit(sharded(body, P("a", "b"), P("a", "b"), False, MESH_2D))
    ffi.reset_stats()
    for ours, axes in zip(step(X), ((0,), (1,), (0, 1)), strict=True):
        blocks = X.reshape(4, 2, 2, 500).transpose(0, 2, 1, 3)  # [a, b, rows, columns]
        total = np.broadcast_to(blocks.sum(axes, keepdims=True), blocks.shape)
        np.testing.assert_allclose(ours, total.transpose(0, 2, 1, 3).reshape(X.shape), rtol=1e-4, atol=1e-5)
    return {site["axes"]: site["plan"] for site in ffi.sites() if site["calls"]}


def test_a_plan_given_for_other_ranks_names_both_numbers_and_the_cure() -> None:
    message = (
        rf"psum over 'a': plan {RING.hash[:8]} is for 8 ranks; this call has 4.\n  Cure: give the call a plan for 4 "
        r"ranks, or leave `plan` out"
    )
    partial = jax.shard_map(
        lambda x: jaxcomm.psum(x, "a", plan=RING), mesh=MESH_2D, in_specs=P("a"), out_specs=P(), axis_names={"a"}
    )
    groups = sharded(lambda x: jaxcomm.psum(x, "d", plan=FOUR, axis_index_groups=PAIRS), P("d"), P("d"), False)
    with pytest.raises(jaxcomm.PlanError, match=message):
        both_axes(plan=RING)
    with pytest.raises(jaxcomm.PlanError, match=message):
        both_axes(plan={"a": RING})
    with pytest.raises(jaxcomm.PlanError, match=message):
        jax.jit(partial)(X)
    with pytest.raises(jaxcomm.PlanError, match="is for 4 ranks; this call has 2"):
        jax.jit(groups)(X)


PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_axis_that_the_active_plan_is_not_for_runs_directly_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log.say_once.cache_clear()
    with jaxcomm.use_plan(FOUR):
        for _ in range(2):
            assert both_axes() == {"a": FOUR.hash[:8], "b": "direct", "a,b": "direct"}
        logged = [record.getMessage() for record in caplog.records if record.name == "jaxcomm"]
        assert len(logged) == 2
        assert f"psum over 'b': the active plan {FOUR.hash[:8]} is for 4 ranks; a call of 2 runs what it" in logged[0]
        with jaxcomm.replace_lax():
            step = sharded(
                lambda x: (jax.lax.psum(x, "b"), jax.lax.psum(x, "a")), P("a", "b"), P("a", "b"), False, MESH_2D
            )
            jax.block_until_ready(jax.jit(step)(X))


def test_plans_by_axis() -> None:
    found = {"a": FOUR.hash[:8], "b": TWO.hash[:8], "a,b": RING.hash[:8]}
    plans = {"a": FOUR, "b": TWO, ("a", "b"): RING}
    assert both_axes(plan=plans) == found
    assert both_axes(plan={"b": TWO}) == {"a": "direct", "b": TWO.hash[:8], "a,b": "direct"}
    with jaxcomm.use_plan(plans):
        assert both_axes() == found
        assert both_axes(plan={"a": None}) == dict.fromkeys(found, "direct")
        with jaxcomm.replace_lax():
            step = sharded(lambda x: jax.lax.psum(jax.lax.psum(x, "b"), "a"), P("a", "b"), P("a", "b"), False, MESH_2D)
            ffi.reset_stats()
            jax.block_until_ready(jax.jit(step)(X))
    assert plans_seen() == {FOUR.hash[:8], TWO.hash[:8]}
    jaxcomm.init(MESH_2D, plan=plans)
    assert active_plan.plan_hash(None, ("b",)) == TWO.hash
    jaxcomm.init(plan={})
    for wrong, where in (
        ({"a": TWO}, "given for 'a'"),
        ({"d": RING}, "given for 'd'"),
        ({("a", "d"): RING}, "'a', 'd'"),
    ):
        with pytest.raises(jaxcomm.PlanError, match=f"{where}, but the mesh's axes have 'a' 4, 'b' 2"):
            jaxcomm.init(MESH_2D, plan=wrong)
    assert active_plan.plan_hash(None, ("a",)) == ""


def test_a_step_is_compiled_once_for_each_set_of_plans() -> None:
    traces = []

    @jax.jit
    def step(x: Any) -> Any:
        traces.append(active_plan.plan_hash(None, ("d",))[:8])
        return sharded(lambda x: jaxcomm.pmean(x, "d"), P("d"), P(), True)(x)

    for plan in ({"d": RING, "a": FOUR}, {"a": FOUR, "d": RING}, {"d": RING}, RING, {"a": FOUR, "d": RING}, {}, None):
        with jaxcomm.use_plan(plan):
            step(X)
    assert traces == [RING.hash[:8]] * 3 + [""]


def test_a_plan_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "plan.json"
    broken.write_text("{}")
    jaxcomm.use_plan(RING)
    for attempt in (jaxcomm.use_plan, lambda plan: jaxcomm.init(plan=plan), lambda plan: total(X, plan=plan)):
        with pytest.raises(jaxcomm.PlanError, match=r"plan\.json"):
            attempt(broken)
    assert active_plan.plan_hash(None) == RING.hash


def test_a_plan_that_does_not_compute_the_sum_is_refused() -> None:
    template = schedules.template(8)
    steps = sorted(template.steps, key=lambda step: step.age)
    early, late = (next(step for step in steps if step.age == age) for age in (1, 3))
    swapped = {early: early._replace(age=3), late: late._replace(age=1)}
    wrong = Template.of_steps(8, template.colours, [swapped.get(step, step) for step in steps]).to_json()
    document = make((0, None, SPECS["straggler"])).model_dump(exclude={"hash"})
    with pytest.raises(jaxcomm.PlanError, match="template"):
        jaxcomm.use_plan(Plan.model_validate({**document, "template": wrong}))
    assert active_plan.plan_hash(None) == ""


def test_init_takes_a_plan_that_fits_the_mesh() -> None:
    for mesh in (None, MESH, MESH_2D):
        jaxcomm.init(mesh, plan=RING)
        assert active_plan.plan_hash(None) == RING.hash
        jaxcomm.init(plan={})
        assert active_plan.plan_hash(None) == ""
    jaxcomm.init()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"plan": make((0, None, SPECS["ring"]), ranks=3)},
            jaxcomm.PlanError,
            "is for 3 ranks, but the mesh's axes have",
        ),
        ({"rails": ["eth0", "eth1:"]}, jaxcomm.JaxcommError, "rails names the rail 'eth1:'; a rail is "),
        (
            {"deadline_s": 0},
            jaxcomm.JaxcommError,
            "deadline_s is 0; it must be a positive number of seconds.\n  Cure: ",
        ),
        ({"deadline_s": float("nan")}, jaxcomm.JaxcommError, "deadline_s is nan"),
        ({"deadline_s": "soon"}, jaxcomm.JaxcommError, "deadline_s is 'soon'"),
    ],
)
def test_init_refuses_what_it_cannot_do(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jaxcomm.init(MESH_2D, **{"plan": RING, **options})
    assert active_plan.plan_hash(None) == ""


def test_an_executable_from_the_cache_finds_its_program(tmp_path: Path) -> None:
    """The shard's size selects the schedule while XLA compiles. The second process loads the executable instead."""
    script = """
import tests.conftest, jax, numpy as np
from tests.collectives.lax_cases import MESH_2D, P
from tests.collectives.plans import SPECS, make
import jaxcomm
plan = make((0, 1000, SPECS["ring"]), (1001, None, SPECS["direct"]), ranks=4)
step = jax.shard_map(
    lambda x: jaxcomm.psum(x, "a", plan=plan), mesh=MESH_2D, in_specs=P("a"), out_specs=P(), axis_names={"a"}
)
x = jax.device_put(np.ones((4, 300), np.float32), jax.NamedSharding(MESH_2D, P("a", "b")))
print(np.asarray(jax.jit(step)(x)).sum())
"""
    options = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **options, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", script]
    for _ in range(2):
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert result.stdout == "1200.0\n"
    assert any(path.name.endswith("-cache") for path in tmp_path.iterdir())


@pytest.mark.parametrize(("ranks", "compiled"), [(64, 1), (65, 0)])
def test_what_would_take_long_to_compile_waits_for_a_call(
    ranks: int, compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(active_plan, "compile_plan", seen.append)
    with jaxcomm.use_plan(make((0, None, SPECS["direct"]), ranks=ranks)):
        assert len(seen) == compiled
