"""`jaxcomm profile` over the processes of a job: the profile, a plan from it that the job runs, and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm import plan, profile
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.measure import measure_processes, processes
from jaxcomm.measure.schedules import LEAST_LATE_S, MOST_LATE_S, Lateness
from jaxcomm.profile import Profile
from tests.processes import fork_server

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PJRT_NPROC"},
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    "JAXCOMM_DEADLINE_S": "100",
}

PROFILE_PLAN_AND_SUM = """
import sys
from jaxcomm.cli import main
words = ["profile", "--sizes", "1KiB,64KiB,1MiB", "--seconds", "10", "--steps", "12", "--late", "rank=2,ms=40"]
assert main([*words, "--out", "profile.json"]) == 0
import jax, jaxcomm, numpy as np
from jax.experimental import multihost_utils
if jax.process_index() == 0:
    assert main(["plan", "profile.json", "--out", "plan.json"]) == 0
multihost_utils.sync_global_devices("planned")
jaxcomm.use_plan("plan.json")
jaxcomm.reset_stats()
ranks = jax.device_count()
mesh = jax.make_mesh((ranks,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.NamedSharding(mesh, jax.P("data"))
x = jax.make_array_from_callback((ranks, 1000), split, lambda at: np.full((1, 1000), at[0].start + 1, np.int32))
step = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P(),
                     check_vma=False)
total = np.asarray(jax.jit(step)(x).addressable_shards[0].data)
assert (total == ranks * (ranks + 1) // 2).all(), total
print("sum", [site["plan"] for site in jaxcomm.stats() if site["calls"]])
"""

ONE_DIES = """
import os, sys
from jaxcomm.cli import main
from jaxcomm.distributed import calls
run, times = calls.run, []
def dying(*arguments):
    times.append(None)
    if len(times) == 9 and os.environ["SLURM_PROCID"] == "2":
        os._exit(0)
    return run(*arguments)
calls.run = dying
code = main(["profile", "--seconds", "1", "--out", "profile.json"])
sys.stdout.flush()
os._exit(code)  # without JAX's own wait for all processes
"""


def launch(folder: Path, processes: int, *words: str) -> subprocess.CompletedProcess[str]:
    python = fork_server.python("jax.experimental.multihost_utils", "jaxcomm.planner", servers=2)
    command = [python, "-m", "jaxcomm.cli", "launch", "-n", f"{processes}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=ENVIRONMENT, cwd=folder)


@pytest.mark.slow
def test_a_job_is_profiled_and_runs_the_plan_of_its_profile(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROFILE_PLAN_AND_SUM)
    done = launch(tmp_path, 4, "script.py")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile.json")
    assert found.ranks == 4 and len({*found.hosts}) == 1 and not found.racks and found.topology is None
    assert len(found.link.samples) >= 2 and found.link.op == "send_recv"
    assert found.timed_schedules and found.timed_schedules.executor == "messages" and found.timed_schedules.late == 2
    assert found.timed_schedules.sizes == (1024, 65536, 2**20)  # the sizes of --sizes
    assert found.link.alpha_s > 0 and found.link.beta_s_per_byte > 0
    assert len(found.arrivals) == 12 and profile.find_straggler(found).rank == 2
    assert found.provenance.source == "4 ranks in 4 processes on 1 host, rank 2 made 40 ms late"
    made = plan.load(tmp_path / "plan.json")
    assert made.hosts == tuple(found.hosts)
    lines = "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())
    assert f"[0] straggler rank 2 on {found.hosts[2]}, last in " in lines
    assert "[0] two on one host" in lines and "[1] straggler" not in lines
    sums = [line for line in done.stdout.splitlines() if "] sum " in line]
    ran = made.schedule_for(4000).kind  # type: ignore[union-attr]
    assert len(sums) == 4 and all(made.hash[:8] in line or ran == "direct" for line in sums)


@pytest.mark.slow
def test_a_process_that_dies_while_measuring_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ONE_DIES)
    done = launch(tmp_path, 3, "script.py")
    assert done.returncode != 0  # JAX may abort the first process, because its coordinator misses process 2
    assert "is gone: process 2" in done.stderr and "Cure: see what process 2 on " in done.stderr
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "also", "seconds"),
    [((), "", 50), (("--executor", "all"), " and 10 of XLA's collectives", 200)],
    ids=["default", "all"],
)
def test_a_trial_says_what_would_be_measured(tmp_path: Path, words: tuple[str, ...], also: str, seconds: int) -> None:
    profile = (sys.executable, "-m", "jaxcomm.cli", "profile", "--dry-run", "--sizes", "1KiB,1MiB")
    done = launch(tmp_path, 2, "--", *profile, *words)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "Gloo" not in line) == [
        "[0] Would time exchanges between 2 ranks, all at once and one pair at a time,",
        "[0] and sums on each rail alone and on all of them, where there are several;",
        f"[0] at 1 KiB, 1 MiB, from the largest down, in all for {seconds} s;",
        "[0] then record each rank's arrival in 50 steps;",
        f"[0] then time the schedules that the links predict to be fastest{also},",
        "[0] then write profile.json.",
        "[0] then, between several hosts, count lost packets for 5 s;",
        "[0] with no late rank and, if a rank is late in the steps, with that late rank,",
    ]


def test_a_process_alone_has_no_links_to_others() -> None:
    with pytest.raises(ProfileError, match=r"one process.*\n  Cure: jaxcomm launch -n 4 -- jaxcomm profile"):
        measure_processes()


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (
            ["--seconds", "5", "--on", "cuda", "--executor", "core"],
            {},
            "--seconds is for the schedules that are timed on CPUs.\n  Cure: ",
        ),
        (["--executor", "all"], {}, "--executor all is for the CPU processes of a job.\n  Cure: "),
        (["--devices", "4"], {"SLURM_NTASKS": "4"}, "all CPU devices of this job's processes are measured.\n  Cure: "),
    ],
)
def test_options_of_the_other_kind_are_refused(
    words: list[str],
    environment: dict[str, str],
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["profile", *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": [1024, 1000]}, "sizes has 1 sizes after rounding; at least 2 are needed"),
        ({"steps": 0}, "steps is 0; it must be from 1 to 256"),
        ({"seconds": 0.0}, "seconds is 0.0; it must be above 0"),
        ({"late": {8: 0.1}}, "late names rank 8; the ranks are 0 to 7"),
        ({"late": {1: -1.0}}, "late makes rank 1 late by -1.0 s; that must be a finite time of 0 or more"),
    ],
)
def test_arguments_that_cannot_be_are_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError) as raised:
        measure_processes(**changed)  # type: ignore[arg-type]
    assert str(raised.value) == f"{message}.\n  Cure: change it and measure again."


def in_steps(*late_s: float, call_s: float = 0.1) -> Profile:
    """A profile whose last rank of four is late by `late_s[i]` in step i, and whose psum takes `call_s`."""
    document = {
        "ranks": 4,
        "link": {"alpha_s": 1e-6, "beta_s_per_byte": 1e-9, "source": "a test"},
        "arrivals": [[0.0, 0.0, 0.0, each] for each in late_s],
        "collective": {"bytes": 2**20, "seconds": call_s},
        "provenance": {"source": "a test", "tool": "pytest"},
    }
    return Profile.model_validate(document)


@pytest.mark.parametrize(
    ("late_s", "lateness"),
    [
        (0.009, None),
        (0.011, Lateness(3, 0.011, 0.011)),
        (0.3, Lateness(3, MOST_LATE_S, 0.3)),
    ],
    ids=["less than a tenth of a psum", "as little late as a profile allows", "long"],
)
def test_the_rank_that_is_late_in_steps_is_late_in_schedules(late_s: float, lateness: Lateness | None) -> None:
    assert processes._lateness(in_steps(*[late_s] * 20), with_xla=False) == lateness


def test_beside_xlas_collectives_a_rank_is_late_in_any_case() -> None:
    assert processes._lateness(in_steps(*[0.0] * 20), with_xla=True) == Lateness(3, LEAST_LATE_S)
    assert processes._lateness(in_steps(*[0.3] * 20), with_xla=True) == Lateness(3, MOST_LATE_S)


def test_hosts_are_one_for_each_rank(tmp_path: Path) -> None:
    document = {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": 2,
        "hosts": ["a"],
        "link": {"alpha_s": 1e-6, "beta_s_per_byte": 1e-9, "source": "assumed"},
        "provenance": {"source": "test", "tool": "test"},
    }
    (tmp_path / "profile.json").write_text(json.dumps(document))
    with pytest.raises(ProfileError, match="hosts has 1 names for 2 ranks; one per rank is needed"):
        profile.load(tmp_path / "profile.json")


def test_the_rails_shares_are_those_of_large_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {(1, "eth0"): 768, (1, "eth1"): 256, (2, "eth0"): 512, (2, "eth1"): 512}
    rails = [{"process": p, "rail": rail, "shares": [[0, 1024], [2**20, each]]} for (p, rail), each in shares.items()]
    monkeypatch.setattr(processes.ffi, "rails", lambda: rails)
    assert processes._rail_shares() == {"eth0": 0.625, "eth1": 0.375}
    thirds = [{"process": 1, "rail": f"eth{i}", "shares": [[0, each]]} for i, each in enumerate((341, 341, 342))]
    monkeypatch.setattr(processes.ffi, "rails", lambda: thirds)
    assert sum(processes._rail_shares().values()) == pytest.approx(1, abs=1e-9)
    monkeypatch.setattr(processes.ffi, "rails", list)
    assert processes._rail_shares() == {}
