"""Steps compiled for H100s without one: plans become exactly their permutes, quickly, in bounded memory."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import jaxcomm
from jaxcomm import environment, ffi, schedules, train
from jaxcomm.arrivals import records
from jaxcomm.collectives.request import Device
from jaxcomm.ffi import segments
from jaxcomm.gpu import core, fused, lowering, nccl
from jaxcomm.program.permutes import compile_permutes
from jaxcomm.schedules import Schedule
from tests.collectives.plans import make, with_halves
from tests.gpu.compiled_ahead import compile_for, compile_partly_manual, needs_plugin

pytestmark = needs_plugin

ROOT = Path(__file__).parents[2]
TOPOLOGIES = ["1x1x8", "1x8x1", "1x2x4"]
MIB = 1 << 20
# A bound, no timing: without barriers between rounds XLA takes minutes.
SECONDS = 120.0

STRAGGLER = {"kind": "straggler", "late": "straggler", "chunks": 28}


def floats(nbytes: int, ranks: int = 8) -> jax.ShapeDtypeStruct:
    """An array of this many bytes on each rank."""
    return jax.ShapeDtypeStruct((ranks * nbytes // 4,), jnp.float32)


def planned(schedule: Schedule) -> int:
    """The permutes of calls of a MiB or more."""
    return compile_permutes(schedule, max(1, schedule.num_chunks // 8)).length


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_planned_sum_is_its_permutes(topology: str, no_plan: None) -> None:
    with jaxcomm.use_plan(make((0, None, STRAGGLER))):
        found = compile_for(topology, lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB))
    assert found.count("collective-permute") == planned(schedules.straggler(8, 3, 28))
    assert found.count("all-reduce") == 0
    assert found.temporary_bytes <= 1.3 * 64 * MIB
    assert found.kernels <= found.count("fusion") / 2  # of like steps they are alike
    assert found.seconds < SECONDS


def test_sums_of_lax_that_are_replaced_are_the_plans_permutes(no_plan: None) -> None:
    with jaxcomm.use_plan(make((0, None, STRAGGLER))), jaxcomm.replace_lax():
        found = compile_for("1x1x8", lambda x: lax.psum(x, "data"), floats(64 * MIB))
    assert found.count("collective-permute") == planned(schedules.straggler(8, 3, 28))
    assert found.count("all-reduce") == 0
    with jaxcomm.replace_lax():
        assert compile_for("1x1x8", lambda x: lax.psum(x, "data"), floats(MIB)).count("all-reduce") == 1


OTHERS = {
    "ring": ({"kind": "ring"}, schedules.ring(8), 0.5),
    "direct": ({"kind": "direct"}, schedules.direct(8), 1.3),
    "halving_doubling": ({"kind": "halving_doubling"}, schedules.halving_doubling(8), 1.3),
    "broadcast": ({"kind": "broadcast", "late": "straggler"}, schedules.broadcast(8, 3), 1.3),
    "direct_join": (
        {"kind": "direct_join", "late": "straggler", "chunks": 28},
        schedules.direct_join(8, 3, 28),
        1.3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_schedules_are_theirs(name: str, no_plan: None) -> None:
    spec, schedule, buffers = OTHERS[name]
    with jaxcomm.use_plan(make((0, None, spec))):
        found = compile_for("1x1x8", lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB))
    assert found.count("collective-permute") == planned(schedule)
    assert found.count("all-reduce") == 0
    assert found.temporary_bytes <= buffers * 64 * MIB
    assert found.seconds < SECONDS


def test_sums_without_a_plan_stay_laxs(no_plan: None) -> None:
    found = compile_for("1x1x8", lambda x: jaxcomm.psum(x, "data"), floats(MIB))
    assert (found.count("all-reduce"), found.count("collective-permute")) == (1, 0)


def test_a_plan_leaves_some_sizes_to_lax(no_plan: None) -> None:
    plan = make((0, MIB - 1, {"kind": "ring"}), (MIB, None, {"kind": "lax"}))
    with jaxcomm.use_plan(plan):
        found = compile_for("1x1x8", lambda x: (jaxcomm.psum(x, "data"), jaxcomm.psum(x[:1000], "data")), floats(MIB))
    assert found.count("all-reduce") == 1
    assert found.count("collective-permute") == planned(schedules.ring(8))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_planned_halves_are_their_permutes(topology: str, no_plan: None) -> None:
    plan = with_halves(make((0, None, STRAGGLER)), (0, None, {"kind": "ring"}), hosts=[0] * 8)

    def body(x: Any) -> Any:
        return jaxcomm.all_gather(jaxcomm.psum_scatter(x, "data", tiled=True), "data", tiled=True)

    with jaxcomm.use_plan(plan):
        found = compile_for(topology, body, floats(8 * MIB))
    each = [planned(schedules.half(half, schedules.ring(8))) for half in ("reduce_scatter", "all_gather")]
    assert found.count("collective-permute") == sum(each) == 14
    assert found.count("all-reduce") == found.count("reduce-scatter") == found.count("all-gather") == 0
    assert found.seconds < SECONDS


def test_shards_of_a_model_stay_sharded(no_plan: None) -> None:
    """The sum over "data" of an array whose columns XLA partitions over "model"."""
    with jaxcomm.use_plan(make((0, None, {"kind": "ring"}), ranks=4)):
        found = compile_partly_manual("1x1x8", lambda x: jaxcomm.psum(x, "data"), (4 * 512, 4096))
    assert found.count("collective-permute") == 6
    assert found.count("all-gather") == found.count("all-reduce") == 0


def test_late_join_is_few_whole_collectives(no_plan: None) -> None:
    with jaxcomm.use_plan(make((0, None, {"kind": "late_join", "late": "straggler", "chunks": 4}))):
        found = compile_for("1x1x8", lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB))
    assert found.count("all-reduce") == 1
    assert "replica_groups={{0,1,2,4,5,6,7},{3}}" in found.text
    assert found.count("collective-broadcast") == found.count("collective-permute") == 4
    assert found.temporary_bytes <= 1.6 * 64 * MIB


@pytest.mark.slow
def test_sixty_four_gpus(no_plan: None) -> None:
    spec = STRAGGLER | {"chunks": 252}
    with jaxcomm.use_plan(make((0, None, spec), ranks=64)):
        found = compile_for("1x8x8", lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB, 64))
    assert found.count("collective-permute") == planned(schedules.straggler(64, 3, 252)) <= 200
    assert found.temporary_bytes <= 1.3 * 64 * MIB
    assert found.seconds < 4 * SECONDS


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_groups_that_change_from_step_to_step(topology: str) -> None:
    pairs = [[[r, r ^ bit] for r in range(8) if not r & bit] for bit in (1, 2, 4)]
    average = train.divide_and_shuffle(pairs, "data")
    found = compile_for(
        topology, lambda x, step: average(x, step[0]), floats(MIB), jax.ShapeDtypeStruct((8,), np.int32)
    )
    assert found.count("all-reduce") + found.count("collective-permute") > 0
    assert found.seconds < SECONDS


def test_a_recipes_whole_step_sums_by_the_plans_permutes(no_plan: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "recipes")
    task = importlib.import_module("language").python_help()

    def step(windows: Any) -> Any:
        variables = task.init(jax.random.key(0))
        gradients, _ = jax.grad(task.loss, has_aux=True)(variables["params"], variables["state"], windows)
        gradients = jaxcomm.pmean(gradients, "data")
        updates, _ = task.optimizer.update(gradients, task.optimizer.init(variables["params"]), variables["params"])
        flat, _ = ravel_pytree(optax.apply_updates(variables["params"], updates))
        return flat[None]

    windows = jax.ShapeDtypeStruct((8 * 4, 65), np.int8)
    with jaxcomm.use_plan(make((0, None, STRAGGLER))):
        found = compile_for("1x1x8", step, windows)
    assert found.count("collective-permute") == compile_permutes(schedules.straggler(8, 3, 28)).length
    assert found.count("all-reduce") == 0
    assert compile_for("1x1x8", step, windows).count("all-reduce") > 0


@pytest.fixture
def certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core's calls, as if they had been checked, and their processes had met."""
    if not core.is_built():
        pytest.skip("this installation has no CUDA core")
    monkeypatch.setattr(lowering, "_why_not", lambda use, members: None)
    monkeypatch.setattr(lowering, "gpus", lambda groups: tuple(tuple(map(numbered, group)) for group in groups))
    monkeypatch.setattr(nccl, "_join", lambda groups, axes: "a group")
    fused.register()
    monkeypatch.setattr(ffi, "_backends", [])
    ffi.add_backend(fused)


def numbered(device: Any) -> Device:
    """A device that has CUDA's number among its process's."""
    return Device(device.process_index, device.id)


@pytest.mark.parametrize(("topology", "target"), [("1x1x8", ffi.TARGET), ("1x8x1", nccl.TARGET)])
def test_a_certified_sum_is_one_call_of_the_core(topology: str, target: str, no_plan: None, certified: None) -> None:
    with jaxcomm.use_plan(make((0, None, STRAGGLER))):
        found = compile_for(topology, lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB), donate=True)
    assert found.text.count(f'custom_call_target="{target}"') == 1
    assert found.count("collective-permute") == found.count("all-reduce") == 0
    assert found.temporary_bytes < MIB


@pytest.mark.parametrize("topology", ["1x1x8", "1x8x1"])
def test_recorded_sums_are_laxs_between_two_calls(
    topology: str, no_plan: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not core.is_built():
        pytest.skip("this installation has no CUDA core")
    monkeypatch.setenv(environment.ARRIVALS, "1")
    found = compile_for(topology, lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB), donate=True)
    for target in (records.ARRIVE, records.END):
        assert found.text.count(f'custom_call_target="{target}"') == 1
    assert found.count("all-reduce") == 1
    assert found.temporary_bytes < MIB
    with jaxcomm.use_plan(make((0, None, STRAGGLER))):
        planned_sum = compile_for(topology, lambda x: jaxcomm.psum(x, "data"), floats(64 * MIB), donate=True)
    assert planned_sum.text.count(f'custom_call_target="{records.ARRIVE}"') == 1
    assert planned_sum.count("collective-permute") == planned(schedules.straggler(8, 3, 28))


def test_importance_masks_are_a_custom_call_where_the_core_is_built() -> None:
    def body(x: Any) -> Any:
        return segments.importance(x, 1024)

    lowering.register_segments()
    found = compile_for("1x1x8", body, floats(MIB))
    assert ("jaxcomm_importance" in found.text) == core.is_built()
    assert found.count("all-reduce") == 0
