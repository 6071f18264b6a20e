"""Whole schedules, timed in turns in this process: the resulting tables, and the numbers of turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from jaxcomm import ffi, profile
from jaxcomm.jax_compat.contexts import trying_plans
from jaxcomm.measure import measure_devices, psum_loop, schedules
from jaxcomm.measure.clocks import CoreClock
from jaxcomm.measure.schedules import (
    FEWEST,
    FEWEST_OF_FINALISTS,
    JOB_SIZES,
    SIZES,
    Lateness,
    schedules_of,
    time_schedules,
)
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile import Profile, ScheduleName
from jaxcomm.profile.timed_schedules import TimedSchedules
from jaxcomm.report import profile_summary

LONG_S = 1e4  # so long that the numbers of turns are the only limit, even on a slow machine


@pytest.fixture(scope="module")
def timed() -> TimedSchedules:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    return time_schedules(mesh, ["memory"], Lateness(2, 0.012), [4096, 16386], seconds=LONG_S)


@pytest.fixture(scope="module")
def shares() -> list[float]:
    return []


@pytest.fixture(scope="module")
def measured(shares: list[float]) -> Profile:
    return measure_devices(2, [4096, 16384], steps=3, late={1: 0.01}, seconds=LONG_S, progress=shares.append)


@pytest.mark.slow
def test_every_kind_is_timed_with_nobody_late_and_with_one_rank_late(timed: TimedSchedules) -> None:
    assert [each.name for each in timed.schedules] == schedules_of(4)
    assert [each.chunks for each in timed.schedules if each.kind == "straggler"] == [12, 3, 48]
    assert (timed.late, timed.executor) == (2, "memory")
    assert timed.left_out == [] and 0 <= timed.others <= 1
    for each in timed.schedules:
        first, second = each.samples
        assert (first.bytes, second.bytes) == (4096, 16384) and len(first.together) == len(first.late) >= FEWEST
        assert min(*first.together, *first.late) > 0 and first.late_by_s >= 0.012


def test_each_call_runs_the_schedule_that_it_is_timed_for() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    with trying_plans(True):
        time_schedules(mesh, ["memory"], Lateness(2), [4096, 4097], seconds=0.1)
        run = psum_loop.timed_loop(mesh, single(timed_spec(ScheduleName(kind="ring")), 4, 2))
        ffi.reset_stats()
        run(psum_loop.zeros(mesh, 4096), np.zeros(4), 80).block_until_ready()
    [site] = [site for site in ffi.sites() if site["calls"]]
    assert site["plan"] != "direct" and not site.get("trial")


def test_direct_and_the_fastest_have_more_turns_than_the_others() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    plans = [single(timed_spec(name), 4, 2) for name in schedules_of(4)[:4]]
    found = schedules.take_turns(mesh, plans, 4096, Lateness(2), seconds=0.0, turns=schedules.TurnCounts(finalists=2))
    assert [len(each.late) for each in found] == [len(each.together) for each in found]
    assert len(found[0].late) == FEWEST_OF_FINALISTS
    assert sorted(len(each.late) for each in found[1:]) == [FEWEST, FEWEST, FEWEST_OF_FINALISTS]
    fastest = min(found[1:], key=lambda each: float(np.median(each.late[:FEWEST])))
    assert len(fastest.late) == FEWEST_OF_FINALISTS


def test_a_rank_is_late_after_all_others_have_written_their_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub reports arrivals 7 ms apart. The delay must include this spread, or the late rank is not late enough."""
    pauses, turn = [], CoreClock.turn

    def recorded(
        clock: CoreClock, loop: Any, x: Any, seconds: NDArray[np.float64], calls: int, late: int | None
    ) -> tuple[Any, float, float]:
        pauses.append(seconds.tolist())
        return *turn(clock, loop, x, seconds, calls, late)[:2], 0.007

    monkeypatch.setattr(CoreClock, "turn", recorded)
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("data",))
    plans = [single(timed_spec(ScheduleName(kind="direct")), 2, 1)]
    schedules.take_turns(
        mesh, plans, 4096, Lateness(1, 0.005), seconds=0.0, turns=schedules.TurnCounts(least=2, most=2)
    )
    assert pauses == [[0.0, 0.0], *[[0.0, 0.0], [0.0, 0.012]] * 2]  # the first turn touches new memory and is not timed


def test_sizes_go_from_four_kibibytes_to_sixty_four_mebibytes() -> None:
    for sizes in (SIZES, JOB_SIZES):
        assert len(sizes) >= 6 and (min(sizes), max(sizes)) == (2**12, 2**26)


@pytest.mark.slow
def test_a_profile_holds_the_schedules_and_its_progress_is_shown(
    measured: Profile, shares: list[float], tmp_path: Path
) -> None:
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)
    assert measured.timed_schedules and measured.timed_schedules.late == 1
    direct = measured.timed_schedules.schedules[0]
    assert [sample.seconds for sample in measured.link.samples] == [each.together_s for each in direct.samples]
    assert "7 timed at 2 sizes, 4 KiB to 16 KiB" in profile_summary.summary(measured)
    profile.save(measured, tmp_path / "profile.json")
    assert profile.load(tmp_path / "profile.json") == measured


def test_what_changes_the_links_forgets_the_times_of_schedules(measured: Profile) -> None:
    assert profile.at_rate(measured, 0.5).timed_schedules is None
    assert profile.with_late_rank(measured, 1, 0.1).timed_schedules == measured.timed_schedules


def test_the_summary_shows_nics_that_are_slower(measured: Profile) -> None:
    slow = measured.model_copy(update={"nics": [1.0, 1.99]})
    assert "rank 1 1.99 × slower" in profile_summary.summary(slow)
    assert "slower" not in profile_summary.summary(measured)
