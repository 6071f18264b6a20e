"""Times of rails: a rail timed alone carries all bytes, the job's shares are restored, the profile has the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.measure import rail_times
from tests.measure.test_profile_job import launch

# Each process counts as a separate host with two rails.
BEGIN = """
import os, sys
os.environ["JAXCOMM_HOST"] = "host" + os.environ["SLURM_PROCID"]
os.environ["JAXCOMM_RAILS"] = "127.0.0.1:4,127.0.0.2:1"
"""
MEASURE = f"""{BEGIN}
import jax
jax.distributed.initialize()
from jaxcomm import ffi
from jaxcomm.measure import rail_times
from jaxcomm.measure.links import MeasuredJob
devices = jax.devices("cpu")
job = MeasuredJob([device.process_index for device in devices], [device.id for device in devices])
shares = lambda: [rail["shares"] for rail in ffi.rails()]
carried = lambda: [rail["bytes"] for rail in ffi.rails()]
before, sums, rows = shares(), job.sums_of_all, []

def watched(nbytes, calls):
    then, found = carried(), sums(nbytes, calls)
    rows.append((nbytes, [now - each for now, each in zip(carried(), then)]))
    return found

job.sums_of_all = watched
rail_times.SIZES = 4096, 1 << 20
found = rail_times.measure(job, 1000.0)  # never left out for lack of time
assert [rail.name for rail in found] == ["127.0.0.1", "127.0.0.2"], found
assert shares() == before, shares()
(_, first), (_, second), (_, both) = rows[-3:]
assert first[0] > 0.9 * sum(first) and second[1] > 0.9 * sum(second) and min(both) > 0.1 * sum(both), rows

def failing(nbytes, calls):
    if nbytes > 4096:
        raise ValueError("in the midst of it")
    return sums(nbytes, calls)

job.sums_of_all = failing
try:
    rail_times.measure(job, 1000.0)
except ValueError:
    assert shares() == before, shares()
    print("restored")
"""
PROFILE = f"""{BEGIN}
from jaxcomm.cli import main
words = ["profile", "--sizes", "1KiB,64KiB", "--seconds", "6", "--steps", "4", "--out", "profile.json"]
assert main(words) == 0
"""


def test_a_rail_alone_carries_all_until_shares_are_restored(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(MEASURE)
    done = launch(tmp_path, 2, "--transport", "tcp", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("restored") == 2


@pytest.mark.slow
def test_a_profile_of_several_rails_gives_a_split(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROFILE)
    done = launch(tmp_path, 2, "--transport", "tcp", "script.py")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile.json")
    assert [(rail.name, rail.transport) for rail in found.rails] == [("127.0.0.1", "tcp"), ("127.0.0.2", "tcp")]
    for rail in found.rails:
        assert rail.latency[0].bytes == rail_times.SIZES[0] and all(sample.seconds > 0 for sample in rail.latency)
        assert rail.processor_s_per_byte and rail.slowdown >= 1
    made = planner.plan(found)
    plan.save(made, tmp_path / "plan.json")
    assert made.rails and [member.name for member in made.rails.members] == ["127.0.0.1", "127.0.0.2"]
    assert "[0] rail 127.0.0.2" in done.stdout


def test_a_slowdown_is_of_the_bytes_that_were_carried() -> None:
    sizes, tables, carried = [1 << 20, 1 << 24], [[1.0, 16.0], [4.0, 64.0]], [[0.5, 0.5], [0.8, 0.2]]
    assert rail_times._slowdown(sizes, tables, [2.0, 12.8], carried) == pytest.approx(1.0, abs=0.01)
    assert rail_times._slowdown(sizes, tables, [6.0, 19.2], carried) == pytest.approx(1.5, abs=0.01)
    assert rail_times._slowdown(sizes, tables, [9.0, 6.4], carried) == 1.0
