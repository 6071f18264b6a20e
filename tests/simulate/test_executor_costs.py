"""Costs of schedules on an executor: interpolated for timed schedules, and by a fitted model for all others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.measure.schedules import schedules_of
from jaxcomm.plan import build
from jaxcomm.plan.timed import ROLE, timed_spec
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.profile.timed_schedules import ScheduleName, ScheduleSample, TimedSchedule, TimedSchedules
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import executor_work
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TermCosts, TimedCosts

RANKS, LATE, MIB = 8, 3, 2**20
SIZES = (4096, 65536, MIB, 4 * MIB, 8 * MIB, 64 * MIB)
LINKS = Cluster(1e-6, 1e-10)
DIRECT, STRAGGLER = ScheduleName(kind="direct"), ScheduleName(kind="straggler", chunks=7)
UNITS = np.array([2e-6, 9e-6, 1e-7, 0.0, 3e-11, 0.0, 5e-11, 2e-11, 3e-11])  # one per term of `_memory`


def machine() -> TermCosts:
    work = executor_work.work_of("memory", LINKS, LATE)[2]
    return TermCosts(work, UNITS)


def made(name: ScheduleName) -> Schedule:
    return build(timed_spec(name), RANKS, {ROLE: LATE}, schedules.template(RANKS))


def measured(costs: Costs, factor: float = 1.0, noise: tuple[float, ...] = (1.0, 1.0, 1.0)) -> TimedSchedules:
    """Times of every kind of schedule, by `costs`. All kinds except direct take `factor` times as long."""
    tables = []
    for name in schedules_of(RANKS):
        samples = []
        for nbytes in SIZES:
            before, after = costs.phases(made(name), nbytes)
            times = factor if name.kind != "direct" else 1.0
            together, late = ([times * seconds * each for each in noise] for seconds in (before + after, after))
            samples.append(ScheduleSample(bytes=nbytes, together=together, late=late, late_by_s=1.0))
        tables.append(TimedSchedule(**name.model_dump(), samples=samples))
    return TimedSchedules(executor="memory", late=LATE, schedules=tables)


def test_lateness_hides_the_part_before_the_arrival_as_far_as_it_lasts() -> None:
    costs = LinkCosts(LINKS)
    schedule = schedules.straggler(RANKS, LATE, 14)
    before, after = costs.phases(schedule, MIB)
    assert costs.cost(schedule, MIB) == pytest.approx(before + after)
    assert costs.cost(schedule, MIB, before / 2) == pytest.approx(before / 2 + after)
    assert costs.cost(schedule, MIB, 1.0) == after == pytest.approx(schedule.seconds(MIB, 1e-6, 1e-10))


def test_timed_schedules_are_interpolated_between_the_sizes() -> None:
    found = TimedCosts.of(measured(machine(), factor=1.7), RANKS, LINKS)
    for name in schedules_of(RANKS):
        schedule, times = made(name), 1.0 if name.kind == "direct" else 1.7
        for nbytes in SIZES:
            before, after = machine().phases(schedule, nbytes)
            assert found.cost(schedule, nbytes, 1.0) == pytest.approx(times * after)
            if schedule.precondition:
                assert found.cost(schedule, nbytes) == pytest.approx(times * (before + after))
        ends = [found.cost(schedule, nbytes, 1.0) for nbytes in (4 * MIB, 6 * MIB, 8 * MIB)]
        assert ends == sorted(ends)
        assert found.cost(schedule, 256 * MIB, 1e3) == pytest.approx(4 * found.cost(schedule, 64 * MIB, 1e3))
        assert found.cost(schedule, 64, 1.0) == found.cost(schedule, 4096, 1.0)


def test_the_model_is_fitted_to_timed_schedules_and_foretells_others() -> None:
    found = TimedCosts.of(measured(machine()), RANKS, LINKS)
    assert max(found.errors.values()) < 0.02 and found.error < 0.02
    other = schedules.straggler(RANKS, LATE, 56)
    assert found.samples(other) is None
    for nbytes in (6 * MIB, 96 * MIB):
        assert found.cost(other, nbytes, 1.0) == pytest.approx(machine().cost(other, nbytes, 1.0), rel=0.03)


def test_memory_in_caches_has_no_ports_so_a_late_rank_gains_nothing() -> None:
    """In caches, direct's stores already fetch the lines that it reads. Stores of large buffers bypass the caches."""
    direct, join = schedules.direct(RANKS), schedules.straggler(RANKS, LATE, 7)
    gain = {nbytes: machine().cost(direct, nbytes, 1.0) / machine().cost(join, nbytes, 1.0) for nbytes in SIZES}
    assert all(gain[nbytes] < 1.05 for nbytes in (4096, 65536, MIB, 4 * MIB))
    assert gain[8 * MIB] > 1.2 and gain[64 * MIB] > 1.3


def test_the_margin_is_what_turns_deviate_or_the_error_of_the_model() -> None:
    noisy = measured(machine())
    for each in noisy.schedules[1:]:
        for sample in each.samples:
            sample.late[:] = [0.9 * sample.late[0], sample.late[0], 1.1 * sample.late[0]]
    found = TimedCosts.of(noisy, RANKS, LINKS)
    straggler, direct = made(STRAGGLER), made(DIRECT)
    deviation = np.log([0.9, 1.0, 1.1]).std(ddof=1)
    # The model expects no gain, so one turn's deviation counts.
    assert found.margin(straggler, MIB, direct) == pytest.approx(1 - np.exp(-4.3 * deviation))
    error = 1.2533 * deviation / 3**0.5
    assert found.margin(straggler, 64 * MIB, direct) == pytest.approx(1 - np.exp(-4.3 * error))
    assert TimedCosts.of(measured(machine()), RANKS, LINKS).margin(straggler, MIB, direct) == pytest.approx(0, abs=1e-9)
    other = schedules.straggler(RANKS, LATE, 56)
    assert found.margin(other, 5 * MIB, direct) == pytest.approx(
        1 - np.exp(-max(found.errors[4 * MIB], found.errors[8 * MIB]))
    )
    assert found.about(5 * MIB) == (4 * MIB, 8 * MIB) and found.about(8 * MIB) == (8 * MIB,)
    assert found.about(1) == (4096,) and found.about(2**40) == (64 * MIB,)


@pytest.mark.parametrize(
    ("turns", "bound"), [(5, "longest"), (7, "longest"), (8, "second longest"), (10, "second longest"), (11, "third")]
)
def test_of_five_turns_or_more_their_order_bounds_the_median(turns: int, bound: str) -> None:
    ratios = np.linspace(0.9, 1.1, turns)
    noisy = measured(machine(), noise=tuple(ratios))
    for each in noisy.schedules:
        for sample in each.samples:
            if each.kind == "direct":
                sample.late[:] = [sample.late[turns // 2]] * (turns + 2)  # direct has two more turns
    found = TimedCosts.of(noisy, RANKS, LINKS)
    worst = ratios[{"longest": -1, "second longest": -2, "third": -3}[bound]]
    margin = found.margin(made(STRAGGLER), 64 * MIB, made(DIRECT))
    assert margin == pytest.approx(1 - np.median(ratios) / worst, rel=0.02)


def test_times_with_another_late_rank_count_only_where_links_are_alike() -> None:
    other = schedules.straggler(RANKS, 5, 7)
    assert TimedCosts.of(measured(machine()), RANKS, LINKS).samples(other)
    hosts = Topology(hosts=(0, 0, 0, 0, 1, 1, 1, 1), nic="host", slow=4.0)
    found = TimedCosts.of(measured(machine()), RANKS, Cluster(1e-6, 1e-10, hosts))
    assert found.samples(other) is None and found.samples(made(STRAGGLER))


def test_the_bounds_of_the_memory_model_are_those_of_the_core() -> None:
    core = Path(__file__).parents[2] / "cc" / "executor"
    for name, file, value in (
        ("kTinyWork", "local/local_executor.cc", executor_work.TINY_WORK),
        ("kStreamBytes", "local/local_site.cc", executor_work.STREAM_BYTES),
        ("kSegmentBytes", "sites/segment_bytes.h", executor_work.SEGMENT_BYTES),
    ):
        match = re.search(rf"{name} = (\d+) << (\d+);", (core / file).read_text())
        assert match and int(match[1]) << int(match[2]) == value
