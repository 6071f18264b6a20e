"""Plans from profiles with timed schedules: a choice follows the times where a gain cannot be chance."""

from __future__ import annotations

import pytest

from jaxcomm import plan, planner
from jaxcomm.measure.schedules import schedules_of
from jaxcomm.plan.proof import decisions
from jaxcomm.plan.values import Entry
from jaxcomm.profile import Bucket, Link, Profile, Provenance
from jaxcomm.profile.timed_schedules import ScheduleSample, TimedExecutor, TimedSchedule, TimedSchedules
from jaxcomm.report.plan.explanation import explanation, summary

RANKS, LATE, MIB = 8, 3, 2**20
SIZES = (4096, 65536, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB)
NOISE = (0.99, 1.0, 1.01)


def timed(
    gains: dict[int, float],
    noise: tuple[float, ...] = NOISE,
    kind: str = "straggler",
    executor: TimedExecutor = "memory",
    ranks: int = RANKS,
) -> TimedSchedules:
    """Times of schedules: `kind` is faster than the default by `gains` if a rank is late, and all others are slower."""
    tables, default = [], "lax" if executor == "xla" else "direct"
    for name in schedules_of(ranks, executor):
        samples = []
        for nbytes in SIZES:
            usual = 5e-6 + 1e-10 * nbytes
            own = (
                usual if name.kind == default else usual / gains.get(nbytes, 1.02) if name.kind == kind else 1.5 * usual
            )
            turns = [own * each for each in (noise if name.kind != default else [1.0] * len(noise))]
            samples.append(ScheduleSample(bytes=nbytes, together=[2 * own] * len(noise), late=turns, late_by_s=0.02))
        tables.append(TimedSchedule(**name.model_dump(), samples=samples))
    return TimedSchedules(executor=executor, late=min(LATE, ranks - 1), schedules=tables)


def profile(schedules: TimedSchedules | None, late_s: float = 0.02, ranks: int = RANKS, **fields: object) -> Profile:
    late = min(LATE, ranks - 1)
    document = {
        "ranks": ranks,
        "link": Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
        "arrivals": [[late_s * (rank == late) for rank in range(ranks)]] * 30,
        "timed_schedules": schedules,
        "provenance": Provenance(source="a test", tool="pytest"),
    }
    return Profile.model_validate(document | fields)


def entry(made: plan.Plan, nbytes: int) -> Entry:
    return made.collectives[made.index_for(nbytes)]


GAINS = {8 * MIB: 1.6, 16 * MIB: 1.5, 64 * MIB: 1.5}


def test_a_plan_promises_nothing_where_no_timed_schedule_gains() -> None:
    made = planner.plan(profile(timed(GAINS)))
    for nbytes in (4096, MIB, 4 * MIB, 6 * MIB, 8 * MIB - 1):
        assert entry(made, nbytes).schedule.kind == "direct"
    for nbytes in (8 * MIB, 12 * MIB, 16 * MIB, 48 * MIB, 64 * MIB):
        assert entry(made, nbytes).schedule.kind == "straggler"
        assert plan.build(entry(made, nbytes).schedule, RANKS, made.roles, made.rotation).precondition
    without = planner.plan(profile(None))  # by the links alone there is a gain, which the times refute
    assert entry(without, 4 * MIB).schedule.kind != "direct"
    words = summary(made).replace("\n", " ")
    assert "rank 3 is late by 20 ms; after it comes a sum of 4 MiB takes 424 µs whatever the schedule" in words
    assert "nothing to plan for up to 4 MiB" in words
    assert "8 whole schedules were timed in memory that all ranks share" in explanation(made).replace("\n    ", " ")


@pytest.mark.parametrize(("size", "beyond"), [(64 * MIB, 96 * MIB), (4096, 1024)])
def test_a_gain_at_one_size_alone_is_chance_also_beyond_it(size: int, beyond: int) -> None:
    made = planner.plan(profile(timed({size: 1.5}, kind="ring")))
    for nbytes in (size, beyond):
        assert entry(made, nbytes).schedule.kind == "direct"


def test_times_between_sizes_follow_the_timed_sizes() -> None:
    made = planner.plan(profile(timed(GAINS)))
    found = entry(made, 16 * MIB).predicted
    assert found.seconds == pytest.approx((5e-6 + 1e-10 * found.reference_bytes) / 1.5, rel=0.05)


@pytest.mark.parametrize(
    ("noise", "gain", "kind"),
    [
        ((0.995, 1.0, 1.005), 1.05, "straggler"),
        ((0.9, 1.0, 1.1), 1.05, "direct"),
        ((0.9, 1.0, 1.1), 1.5, "straggler"),
        ((0.95, 0.97, 1.0, 1.0, 1.0, 1.05, 1.05, 3.0), 1.3, "straggler"),  # one outlier in eight turns
        ((0.95, 0.97, 1.0, 1.0, 1.0, 1.05, 3.0, 3.0), 1.3, "direct"),
    ],
)
def test_a_gain_counts_if_it_exceeds_what_turns_deviate(noise: tuple[float, ...], gain: float, kind: str) -> None:
    made = planner.plan(profile(timed(dict.fromkeys(SIZES, gain), noise)))
    assert entry(made, 16 * MIB).schedule.kind == kind
    assert entry(planner.plan(profile(timed(dict.fromkeys(SIZES, 1.05), noise)), min_gain=0.01), MIB).schedule.late


def test_a_rank_that_is_less_late_leaves_some_of_the_others_part_to_do() -> None:
    made = planner.plan(profile(timed(GAINS), late_s=1e-4))
    assert all(each.schedule.kind == "direct" for each in made.collectives)


def test_another_plain_schedule_must_gain_as_much_to_replace_direct() -> None:
    made = planner.plan(profile(timed({16 * MIB: 1.3, 64 * MIB: 1.3}, kind="ring")))
    assert entry(made, 4 * MIB).schedule.kind == "direct" and entry(made, 32 * MIB).schedule.kind == "ring"


def test_a_steps_buckets_use_the_delay_only_where_timed_schedules_gain() -> None:
    buckets = [Bucket(name=str(i), bytes=size, ready_s=1e-3 * i) for i, size in enumerate((MIB, 4 * MIB, 16 * MIB))]
    made = planner.plan(profile(timed(GAINS), buckets=buckets))
    assert made.step
    for bucket in made.step.planned:
        assert bucket.schedule.kind in (("straggler",) if bucket.bytes >= 8 * MIB else ("direct",))


@pytest.mark.parametrize("kind", ["straggler", "late_join", "ring"])
def test_of_xlas_collectives_lax_runs_where_no_schedule_gains(kind: str) -> None:
    buckets = [Bucket(name=str(i), bytes=size, ready_s=1e-3 * i) for i, size in enumerate((MIB, 4 * MIB, 16 * MIB))]
    is_join = kind == "late_join"
    for fields in {}, {"buckets": buckets}:
        made = planner.plan(profile(timed(GAINS, kind=kind, executor="xla"), **fields))
        plan.verify(made)
        for nbytes in (4096, MIB, 4 * MIB, 8 * MIB - 1):
            assert (entry(made, nbytes).schedule.kind, entry(made, nbytes).executor) == ("lax", None)
            assert made.executor_for(False, nbytes) == "lax"
        for nbytes in (8 * MIB, 12 * MIB, 16 * MIB, 64 * MIB):
            assert (entry(made, nbytes).schedule.kind, made.executor_for(False, nbytes)) == (kind, "xla")
        assert made.halves is None and not any(each.selector for each in made.collectives)
        words = explanation(made).replace("\n    ", " ")
        assert "11 whole schedules were timed by XLA's collectives" in words
        assert "why lax\n  Executor: jax.lax's own collective, as without a plan: no timed schedule saves" in words
        assert "  Executor: XLA's own collectives, without a deadline" in words
        assert ("the other 7 allreduce in a group of their own; once it is there, its buffer" in words) is is_join
        assert "It pays from" not in words
        left = sum(each.schedule.kind == "lax" for each in made.collectives)
        assert dict(decisions(made))["lax"].startswith(f"{left} of {len(made.collectives)} byte ranges left to jax.lax")
    assert entry(made, 16 * MIB).predicted.seconds == pytest.approx((5e-6 + 1e-10 * 16 * MIB) / 1.5, rel=0.05)


def test_a_chance_gain_leaves_calls_to_lax() -> None:
    made = planner.plan(profile(timed(dict.fromkeys(SIZES, 1.05), (0.9, 1.0, 1.1), executor="xla")))
    assert {each.schedule.kind for each in made.collectives} == {"lax"}


@pytest.mark.parametrize("executor", ["memory", "xla"])
def test_a_profile_of_timed_schedules_survives_its_file(executor: TimedExecutor) -> None:
    given = profile(timed(GAINS, executor=executor))
    assert Profile.model_validate_json(given.model_dump_json()) == given
    assert given.hash != profile(None).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tables: tables.pop(0), "memory have .* at 4096 bytes, but not direct"),
        (lambda tables: tables.__delitem__(slice(1, None)), "are direct alone; at least one other is needed"),
        (lambda tables: tables[0].update(chunks=4), "direct with chunks 4; it has no parameters"),
        (lambda tables: tables[-1].update(chunks=100000), "less than or equal to 65536"),
        (lambda tables: tables[3].update(kind="lax", chunks=None), "is lax, which the executor memory does not run"),
        (lambda tables: tables.append(tables[1]), "again"),
        (lambda tables: tables[0]["samples"].pop(), "at 67108864 bytes, but not direct"),
        (lambda tables: tables[2].update(within=2), "within 2 and across None; only a hierarchical"),
        (lambda tables: tables[2].update(kind="hybrid"), "hybrid with covered None; it has chunks and covered"),
        (lambda tables: tables[0]["samples"].reverse(), "must ascend"),
        (lambda tables: tables[2]["samples"][0]["late"].pop(), r"\[2\].samples\[0\] has \d+ turns in together"),
        (lambda tables: tables[2]["samples"][0]["late"].__setitem__(0, 0.0), "greater than 0"),
    ],
)
def test_tables_that_cannot_be_compared_are_refused(change: object, message: str) -> None:
    document = timed(GAINS).model_dump()
    assert callable(change)
    change(document["schedules"])
    with pytest.raises(ValueError, match=message):
        TimedSchedules.model_validate(document)


def test_schedules_may_be_timed_at_other_sizes_than_the_default() -> None:
    document = timed(GAINS).model_dump()
    for table in document["schedules"][2:]:
        del table["samples"][0]
    found = TimedSchedules.model_validate(document)
    assert found.sizes == SIZES
    made = planner.plan(profile(found))
    assert entry(made, 16 * MIB).schedule.kind == "straggler" and entry(made, 4096).schedule.kind == "direct"
