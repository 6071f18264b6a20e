"""Costs of schedules between hosts: the modelled times of links, multiplied by measured factors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from jaxcomm import schedules
from jaxcomm.plan import build
from jaxcomm.plan.timed import ROLE, timed_spec
from jaxcomm.profile import ScheduleName, ScheduleSample, TimedSchedule, TimedSchedules
from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import BetweenHosts, TimedCosts, timed_costs
from jaxcomm.simulate.executor_costs import LinkCosts

RANKS, LATE, KIB, MIB = 4, 3, 2**10, 2**20
LINKS = Cluster(1e-4, 2e-8)  # bytes bound all schedules from 200 kB on
MODEL = LinkCosts(LINKS, (LATE,))
DIRECT, RING = ScheduleName(kind="direct"), ScheduleName(kind="ring")
FEW, MORE, MANY = (ScheduleName(kind="straggler", chunks=chunks) for chunks in (3, 6, 12))
LONG_S = 1e3


def made(name: ScheduleName) -> Schedule:
    return build(timed_spec(name), RANKS, {ROLE: LATE}, schedules.template(RANKS))


def costs(factors: Mapping[ScheduleName, Mapping[int, float]], late: float = 1.0, links: Cluster = LINKS) -> TimedCosts:
    """Costs of timed schedules. `factors` has, by size, the measured time divided by the links' modelled time.

    The factors of calls with a late rank are multiplied by `late`.
    """
    model, tables = LinkCosts(links, (LATE,)), []
    for name, by_size in factors.items():
        samples = [
            ScheduleSample(
                bytes=nbytes,
                together=[factor * model.cost(made(name), nbytes)] * 3,
                late=[late * factor * model.cost(made(name), nbytes, LONG_S)] * 3,
                late_by_s=LONG_S,
            )
            for nbytes, factor in by_size.items()
        ]
        tables.append(TimedSchedule(**name.model_dump(), samples=samples))
    timed = TimedSchedules(executor="messages", late=LATE, schedules=tables)
    found = timed_costs(timed, RANKS, links, RANKS)
    assert isinstance(found, BetweenHosts)
    return found


def factor(found: TimedCosts, name: ScheduleName, nbytes: int, lateness: float = LONG_S) -> float:
    return found.cost(made(name), nbytes, lateness) / MODEL.cost(made(name), nbytes, lateness)


def test_a_timed_schedule_takes_what_it_was_timed_at() -> None:
    found = costs({DIRECT: {MIB: 1.1}, FEW: {MIB: 1.4}}, late=0.9)
    assert factor(found, DIRECT, MIB, 0.0) == pytest.approx(1.1)
    assert factor(found, FEW, MIB, 0.0) == pytest.approx(1.4)
    assert factor(found, FEW, MIB) == pytest.approx(1.4 * 0.9)


def test_other_schedules_take_the_median_of_their_kind_or_of_all() -> None:
    found = costs({DIRECT: {MIB: 1.0}, RING: {MIB: 1.1}, FEW: {MIB: 1.5}, MORE: {MIB: 2.5}})
    assert factor(found, MANY, MIB) == pytest.approx(2.0)
    assert factor(found, ScheduleName(kind="halving_doubling"), MIB) == pytest.approx(1.3)


def test_factors_are_interpolated_between_sizes_and_stay_beyond_them() -> None:
    found = costs({DIRECT: {MIB: 1.0, 4 * MIB: 1.0}, FEW: {MIB: 4.0, 4 * MIB: 1.0, 16 * MIB: 1.5}, RING: {16 * MIB: 1}})
    assert factor(found, FEW, 2 * MIB) == pytest.approx(2.0)
    assert factor(found, FEW, 64 * MIB) == pytest.approx(1.5)
    assert factor(found, FEW, 1) == pytest.approx(4.0)
    assert found.reaches(2**40)


def test_a_size_without_an_own_time_takes_that_of_other_schedules() -> None:
    """A schedule may be untimed at one size. Its times at neighbouring sizes do not show that this size is slow."""
    direct = {MIB: 1.0, 4 * MIB: 3.0, 16 * MIB: 1.0}
    found = costs({DIRECT: direct, RING: {4 * MIB: 3.0}, FEW: {MIB: 1.0, 16 * MIB: 1.0}})
    assert factor(found, FEW, 4 * MIB) == pytest.approx(3.0)


def test_small_timed_sizes_tell_nothing_of_calls_that_bytes_bound() -> None:
    """A real case: the factor 0.3 of latency-bound 4 KiB calls predicted 159 ms for a call of 537 ms."""
    links = Cluster(1e-3, 0.535 / (1.5 * 16 * MIB))
    found = costs({DIRECT: {4 * KIB: 0.296}, RING: {4 * KIB: 0.5}}, links=links)
    assert found.cost(made(DIRECT), 4 * KIB) == pytest.approx(0.296 * LinkCosts(links).cost(made(DIRECT), 4 * KIB))
    assert found.cost(made(DIRECT), 16 * MIB) == pytest.approx(0.537)
    between = found.cost(made(DIRECT), 64 * KIB) / LinkCosts(links).cost(made(DIRECT), 64 * KIB)
    assert 0.296 < between < 1


def test_errors_are_those_of_a_size() -> None:
    found = costs({DIRECT: {KIB: 1.0, MIB: 1.0}, RING: {KIB: 3.0, MIB: 1.0}, FEW: {KIB: 9.0, MIB: 1.0}})
    assert found.errors[KIB] == pytest.approx(math.log(3) * (2 / 3) ** 0.5)
    assert found.errors[MIB] == pytest.approx(0, abs=1e-9)
    assert found.margin(made(MANY), MIB, made(DIRECT)) == pytest.approx(0, abs=1e-9)
    assert found.margin(made(MANY), KIB, made(DIRECT)) > 0.5


def test_ranks_of_one_host_keep_the_executors_own_model() -> None:
    timed = costs({DIRECT: {MIB: 1.1}, FEW: {MIB: 1.4}}).timed
    assert not timed_costs(timed, RANKS, LINKS, 1).between_hosts
    assert timed_costs(timed, RANKS, LINKS, 2).between_hosts
