"""The fused executor's door, without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi, planner, schedules
from jaxcomm.collectives.request import Device
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.gpu import core, fused, lowering
from jaxcomm.log import say_once
from jaxcomm.profile import Link, Profile, Provenance
from tests.gpu import certified

built = pytest.mark.skipif(not core.is_built(), reason="this installation has no CUDA core")


def test_an_array_that_does_not_fit_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the array is \(3, 4\), the schedule is for 4 ranks"):
        fused.virtual_psum(jnp.zeros((3, 4)), schedules.ring(4))


@built
def test_it_registers_and_lowers_without_a_device() -> None:
    fused.register()
    assert fused.registered_program(schedules.ring(4)) == fused.registered_program(schedules.ring(4))
    fused.check()  # nothing has run
    assert fused.sites() == []
    fused.reset_stats()


@built
def test_a_damaged_program_is_refused() -> None:
    with pytest.raises(PlanError, match="program word 0: this is not a jaxcomm program"):
        fused.register_program("damaged", b"no program at all...")


@built
@pytest.mark.parametrize("kind", ["all_reduce", "virtual"])
def test_its_calls_decode_their_attributes(kind: str) -> None:
    """XLA's CPU backend asks for that, too, when it compiles a step, which is not run."""
    core.CUDA.register(target := f"{kind} on CPUs", "Fused", "cpu", ("instantiate", "execute"))
    x, program = jnp.ones((4, 8)), fused.registered_program(schedules.ring(4))
    groups = {"groups": np.arange(4, dtype=np.int32), "sizes": np.array([4], np.int32)}
    names = {"name": "psum", "axes": "data", "kind": kind, "programs": f"{program},"}
    attributes = {"plan": "ring", "reduction": "sum", **names, **groups}

    def compile_with(**changes: Any) -> None:
        call = jax.ffi.ffi_call(target, jax.typeof(x))
        jax.jit(lambda x: call(x, **{**attributes, **changes})).lower(x).compile()

    compile_with()
    with pytest.raises(jax.errors.JaxRuntimeError, match="program unknown is not registered"):
        compile_with(programs="unknown,")
    with pytest.raises(jax.errors.JaxRuntimeError, match="reduction 'product'"):
        compile_with(reduction="product")
    with pytest.raises(jax.errors.JaxRuntimeError, match="GPUs have no 'all_gather'"):
        compile_with(kind="all_gather")
    with pytest.raises(jax.errors.JaxRuntimeError, match="group 0 of 5 ranks lacks its program or its devices"):
        compile_with(sizes=np.array([5], np.int32))


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if psum over GPUs of a process had been shown."""
    certified.use(monkeypatch, tmp_path, "process")


def lowered(call: Callable[..., Any], *, axes: tuple[str, ...] = ("data", "model"), check_vma: bool = False) -> str:
    """For GPUs, the text of a step over eight devices of which each has a row of two arrays."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = P("data")
    step = jax.shard_map(
        call, mesh=mesh, in_specs=(rows, rows), out_specs=rows, axis_names={*axes}, check_vma=check_vma
    )
    x = jnp.ones((4, 6)), jnp.ones((4, 3), jnp.bfloat16)
    text: str = jax.jit(lambda *xs: step(*xs)).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
    return text


@pytest.mark.usefixtures("on_gpus")
def test_psum_over_gpus_is_one_call_of_the_core_for_each_type() -> None:
    text = lowered(lambda x, y: jaxcomm.psum((x, y, x + 1, y * 2), "data"))
    calls = [line for line in text.splitlines() if "@jaxcomm_collective(" in line]
    assert ["tensor<12xf32>" in call for call in calls] == [True, False]  # six and six, one after the other
    assert ["tensor<6xbf16>" in call for call in calls] == [False, True]
    assert text.count("stablehlo.concatenate") == 2 and 'all_reduce"(' not in text
    assert "groups = dense<[0, 2, 4, 6, 1, 3, 5, 7]>" in text and "sizes = dense<4> : tensor<2xi32>" in text
    assert 'kind = "all_reduce"' in text and 'reduction = "sum"' in text
    assert "output_operand_alias" in text


@pytest.mark.usefixtures("on_gpus")
def test_types_that_check_vma_follows_change_nothing() -> None:
    def step(x: jax.Array, y: jax.Array) -> Any:
        sums = jaxcomm.psum((x, y, x + 1), "data")
        return tuple(jax.lax.pcast(total, "data", to="varying") for total in sums)

    assert lowered(step, check_vma=True).count("@jaxcomm_collective(") == 2


@pytest.mark.usefixtures("on_gpus")
def test_a_plan_reaches_gpus() -> None:
    link = Link(alpha_s=1e-5, beta_s_per_byte=1e-10, source="made up")
    given = Profile(ranks=4, link=link, provenance=Provenance(source="made up", tool="test"))
    plan = planner.plan(given, ports=1)
    schedule = plan.schedule_for(30)
    assert schedule is not None and schedule.kind == "halving_doubling"
    program = fused.hashlib.sha256(fused.compile(schedule)).hexdigest()[:32]
    assert f'programs = "{program},{program},"' in lowered(lambda *xs: jaxcomm.psum(xs, "data", plan=plan))
    assert program not in lowered(lambda *xs: jaxcomm.psum(xs, "data"))


@pytest.mark.usefixtures("on_gpus")
def test_what_gpus_lack_stays_laxs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jaxcomm"):
        text = lowered(lambda *xs: jaxcomm.all_gather(xs, "data", tiled=True))
    assert "@jaxcomm_collective(" not in text and "all_gather" in text
    assert "jaxcomm has no all_gather for GPUs: it runs as jax.lax's, without a plan." in caplog.text


@pytest.mark.usefixtures("on_gpus")
def test_where_xla_partitions_other_axes_gpus_stay_laxs(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jaxcomm"):
        text = lowered(lambda *xs: jaxcomm.psum(xs, "data"), axes=("data",))
    assert "@jaxcomm_collective(" not in text and "all_reduce" in text
    assert "jaxcomm.psum over GPUs runs as jax.lax's, without a plan: XLA still partitions over model." in caplog.text


def test_gpus_are_named_by_cudas_numbers() -> None:
    gpus = [SimpleNamespace(id=8 + i, local_hardware_id=i, process_index=0) for i in range(2)]
    assert lowering.gpus([gpus[::-1]]) == (((0, 1), (0, 0)),)
    assert fused.device_key(Device(process=2, number=1)) == 2 << 16 | 1


@built
def test_memory_that_cuda_does_not_know_is_reached_by_no_gpu() -> None:
    address = np.zeros(1).ctypes.data
    error = core.CUDA.failure("cuda_reach", 0, address)
    assert error is not None and "other GPUs cannot reach memory of this allocator.\n  Cure: run without" in error
    assert core.CUDA.text("cuda_memory", 0, address) == "neither cuMemCreate's nor cudaMalloc's"


def test_an_unreported_failure_is_logged_at_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check() -> None:
        raise JaxcommError("DeadlineError: psum #9 over 'data': rank 3 of 8 has not arrived")

    monkeypatch.setattr(fused, "check", check)
    with caplog.at_level(logging.ERROR, "jaxcomm"):
        lowering.check_at_exit()
    assert "psum #9 over 'data': rank 3 of 8 has not arrived" in caplog.text


def test_a_back_end_that_comes_late_is_given_what_the_core_has(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(SimpleNamespace):
        """Notes what it is given."""

        def register_program(self, name: str, data: bytes) -> None:
            self.programs[name] = data

        def set_deadline(self, seconds: float) -> None:
            self.deadline = seconds

        def sites(self) -> list[dict[str, Any]]:
            return [{"name": "a GPU's"}]

        def reset_stats(self) -> None:
            self.stats_reset = True

    monkeypatch.setattr(ffi, "_backends", [])
    before, later = (fused.compile(schedules.ring(ranks)) for ranks in (5, 6))
    early = ffi.register_program(before)
    ffi.set_deadline(60.0)
    ffi.add_backend(backend := Late(programs={}, deadline=0.0))
    assert backend.programs[early] == before and backend.deadline == 60.0
    assert backend.programs[ffi.register_program(later)] == later
    assert ffi.sites()[-1] == {"name": "a GPU's"}
    ffi.reset_stats()
    assert backend.stats_reset
