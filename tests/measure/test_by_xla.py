"""`jaxcomm profile --executor xla`: the host's clock times sums by XLA's collectives, and a plan uses the times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcomm import plan, profile
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.measure import measure_by_xla
from jaxcomm.measure.schedules import schedules_of
from tests.measure.test_profile_job import launch
from tests.planner.test_timed_schedules import GAINS, timed
from tests.planner.test_timed_schedules import profile as timed_profile

PROFILE_PLAN_AND_SUM = """
from jaxcomm.cli import main
words = ["profile", "--on", "cpu", "--executor", "xla", "--sizes", "4KiB,16KiB", "--seconds", "60", "--steps", "12"]
assert main([*words, "--late", "rank=1,ms=40"]) == 0
import jax, jaxcomm, numpy as np
from jax.experimental import multihost_utils
from jaxcomm.measure.schedules import Lateness, TurnCounts, take_turns
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile import ScheduleName
print("core", sum(site["calls"] for site in jaxcomm.stats()))
first, ranks = jax.process_index() == 0, jax.device_count()
mesh = jax.make_mesh((ranks,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
lax, ring = (timed_spec(ScheduleName(kind=kind)) for kind in ("lax", "ring"))
plans = [single(lax, ranks), single(ring, ranks, executor="xla")]
found = take_turns(mesh, plans, 4096, Lateness(1, 0.3), executor="xla", seconds=1, turns=TurnCounts(2, 2))
assert all(max(*times.together, *times.late) < 0.3 and times.late_by_s == 0.3 for times in found), found
if first:
    assert main(["plan", "profile.json"]) == 0 and main(["explain", "plan.json"]) == 0
multihost_utils.sync_global_devices("planned")
jaxcomm.use_plan("plan.json")
split = jax.NamedSharding(mesh, jax.P("data"))
x = jax.make_array_from_callback((ranks, 1024), split, lambda at: np.full((1, 1024), at[0].start + 1, np.int32))
step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P(),
                             check_vma=False)).lower(x).compile()
assert (np.asarray(step(x).addressable_shards[0].data) == ranks * (ranks + 1) // 2).all()
runs = [word for word in ("all-reduce", "collective-permute", "jaxcomm_collective") if f" {word}(" in step.as_text()]
print("runs", runs)
"""


@pytest.mark.slow
def test_a_job_times_xlas_collectives_and_runs_the_plan_of_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROFILE_PLAN_AND_SUM)
    done = launch(tmp_path, 2, "script.py")
    assert done.returncode == 0, done.stderr + done.stdout
    found = profile.load(tmp_path / "profile.json")
    tables = found.timed_schedules
    assert tables and (tables.executor, tables.late) == ("xla", 1)
    assert [each.name for each in tables.schedules] == schedules_of(2, "xla")
    assert {sample.bytes for each in tables.schedules for sample in each.samples} == {4096, 16384}
    assert len(found.hosts) == 2 and len({*found.hosts}) == 1
    late = profile.find_straggler(found)
    assert len(found.arrivals) == 12 and late.rank == 1 and late.median_s >= 0.035
    assert found.provenance.source == "2 ranks in 2 processes, by XLA's collectives, rank 1 made 40 ms late"
    made = plan.load(tmp_path / "plan.json")
    executor = made.executor_for(False, 4096)
    runs = {"lax": ["all-reduce"], "xla": ["collective-permute"]}[executor or "none"]
    assert done.stdout.count(f"] runs {runs}") == 2 and done.stdout.count("] core 0") == 2, done.stdout
    assert "10 whole schedules were timed by XLA's collectives" in done.stdout.replace("\n[0]     ", " ")


PROCESSES = 3
PROFILE_BOTH_AND_SUM = """
import re, sys
from jaxcomm.cli import main
words = ["profile", "--executor", "all", "--sizes", "4KiB,16KiB", "--seconds", "5", "--steps", "12",
         "--late", "rank=1,ms=40"]
assert main(words) == 0
import jax, jaxcomm, numpy as np
from jax.experimental import multihost_utils
from jaxcomm import plan, planner
from jaxcomm.gpu.checks.expected import by_numpy
from tests.planner.test_executors_timed_together import SIZES, together
first, ranks = jax.process_index() == 0, jax.device_count()
if first:
    assert main(["plan", "profile.json"]) == 0 and main(["explain", "plan.json"]) == 0
multihost_utils.sync_global_devices("planned")
mesh = jax.make_mesh((ranks,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.NamedSharding(mesh, jax.P("data"))
values = np.random.default_rng(0).standard_normal((ranks, 4099)).astype(np.float32) * 100
x = jax.make_array_from_callback(values.shape, split, lambda at: values[at])
always = dict.fromkeys(SIZES, 1.5)
profiles = {"core": together(0.5, ranks=ranks), "lax": together(2.0, ranks=ranks),
            "ring": together(1.0, "ring", always, ranks), "late_join": together(1.0, "late_join", always, ranks)}
plans = {name: planner.plan(each) for name, each in profiles.items()} | {"measured": plan.load("plan.json")}
for name, made in plans.items():
    with jaxcomm.use_plan(made):
        step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"),
                                     out_specs=jax.P("data"), check_vma=False)).lower(x).compile()
    own = np.asarray(step(x).addressable_shards[0].data)
    everybody = multihost_utils.process_allgather(own[0])
    assert len({row.tobytes() for row in everybody}) == 1
    np.testing.assert_allclose(own[0], values.sum(0), rtol=1e-5, atol=1e-3)
    if name == "ring":
        assert own[0].tobytes() == by_numpy(made.schedules[-1], values)[0].tobytes()
    runs = [word for word in ("all-reduce", "collective-permute", "jaxcomm_collective")
            if word in re.sub("%[^ ]*", "", step.as_text())]
    print("ran", name, made.executor_for(False, 4 * 4099), runs)
"""


@pytest.mark.slow
def test_a_job_times_both_executors_and_the_faster_one_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROFILE_BOTH_AND_SUM)
    done = launch(tmp_path, PROCESSES, "script.py")
    assert done.returncode == 0, done.stderr + done.stdout
    tables = profile.load(tmp_path / "profile.json").timed_schedules
    assert tables and tables.executor == "messages"
    parts = tables.by_executor()
    assert [*parts] == ["messages", "xla"] and len(parts["messages"].schedules) > 3
    assert len(parts["xla"].schedules) == len(schedules_of(PROCESSES, "xla"))
    for part in parts.values():  # each executor has four finalists, which have more turns than the other schedules
        smallest = [each.samples[0] for each in part.schedules if each.samples[0].bytes == part.sizes[0]]
        turns = sorted(len(each.late) for each in smallest)
        assert turns[-4:] == [turns[-1]] * 4 and turns[-1] > turns[0]
    ran = {
        line.split()[2]: line.split(maxsplit=3)[3] for line in done.stdout.splitlines() if line.startswith("[0] ran ")
    }
    measured = ran.pop("measured").split()[0]
    assert measured == str(plan.load(tmp_path / "plan.json").executor_for(False, 4 * 4099))
    assert ran == {
        "core": "None ['jaxcomm_collective']",
        "lax": "lax ['all-reduce']",
        "ring": "xla ['collective-permute']",
        "late_join": "xla ['all-reduce', 'collective-permute']",
    }
    words = " ".join(line.removeprefix("[0]").strip() for line in done.stdout.splitlines())
    assert f"{len(parts['messages'].schedules)} whole schedules were timed between processes" in words
    assert f"{len(schedules_of(PROCESSES, 'xla'))} whole schedules were timed by XLA's collectives" in words
    assert "Executor: " in words and "Otherwise these calls would take " in words


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure_by_xla(1), "devices is 1; at least 2 are needed"),
        (lambda: measure_by_xla(2, []), "sizes is empty"),
        (lambda: measure_by_xla(2, [4096, 3]), "sizes has 3; each must be 4 bytes or more"),
        (lambda: measure_by_xla(2, steps=0), "steps is 0; at least 1 is needed"),
        (lambda: measure_by_xla(2, seconds=0), "seconds is 0; it must be above 0"),
        (lambda: measure_by_xla(2, late={2: 1.0}), "late names rank 2; the ranks are 0 to 1"),
        (lambda: measure_by_xla(4096), "JAX has 8 CPU devices; 4096 are needed"),
        (lambda: measure_by_xla(on="tpu"), r"JAX has no TPU devices \(.*\)\.\n  Cure: measure where"),
    ],
)
def test_measurements_that_cannot_be_made_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        call()


def test_plans_of_xlas_collectives_are_not_tried_on_the_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.save(timed_profile(timed(GAINS, executor="xla")), tmp_path / "profile.json")
    assert main(["plan", str(tmp_path / "profile.json"), "--try", "--dry-run"]) == 1
    assert "this profile has times of XLA's own collectives, which run this plan.\n  Cure:" in capsys.readouterr().err


def test_a_dry_run_says_that_xlas_collectives_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "--on", "tpu", "--devices", "4", "--sizes", "4KiB,1MiB", "--late", "rank=1,ms=5", "--dry-run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (
        "11 schedules of XLA's collectives between 4 TPUs, with no late rank and with one,\nat each of 4 KiB, 1" in said
    )
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["on"], found["executor"], found["devices"], found["seconds"]) == ("tpu", "xla", 4, 150.0)
    assert main(["profile", "--on", "tpu", "--executor", "core"]) == 1
    assert "jaxcomm's core does not run on TPUs.\n  Cure: --executor xla" in capsys.readouterr().err


def test_a_platform_without_the_cpu_beside_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()

    def without_cpus(backend: str | None = None) -> list[Any]:
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return devices

    monkeypatch.setattr(jax, "devices", without_cpus)
    with pytest.raises(ProfileError, match=r"JAX_PLATFORMS leaves out the CPU.*\n  Cure: JAX_PLATFORMS=cuda,cpu\."):
        measure_by_xla(on="cuda")
