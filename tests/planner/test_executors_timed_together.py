"""Plans from profiles that timed our executor and XLA's collectives in turns: each size runs on the faster one."""

from __future__ import annotations

import re

import pytest

from jaxcomm import plan, planner, simulate
from jaxcomm.errors import ProfileError
from jaxcomm.plan.values import Entry
from jaxcomm.profile import Bucket, Profile
from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import ScheduleSample, TimedSchedule, TimedSchedules
from jaxcomm.report.plan.considered import considered
from jaxcomm.report.plan.explanation import explanation
from tests.planner.test_timed_schedules import GAINS, MIB, RANKS, SIZES, profile, timed


def together(
    lax: float | dict[int, float],
    kind: str = "straggler",
    gains: dict[int, float] | None = None,
    ranks: int = RANKS,
) -> Profile:
    """A profile in which the core's direct schedule takes 0.1 ns per byte, and `lax.psum` is `lax` times as fast.

    Args:
      lax: the factor at all sizes, or by size (0.5 at missing sizes).
      kind: the kind of XLA's schedules that are faster than lax by the factors `gains`.
      gains: factors by size; 1.02 at missing sizes.
      ranks: number of ranks.
    """
    core = timed({}, executor="messages", ranks=ranks)
    by_xla = timed(gains or {}, kind=kind, executor="xla", ranks=ranks)
    speed = {size: lax if isinstance(lax, float) else lax.get(size, 0.5) for size in SIZES}
    tables = [*core.schedules]
    for each in by_xla.schedules:
        samples = [
            ScheduleSample(
                bytes=sample.bytes,
                together=[seconds / speed[sample.bytes] for seconds in sample.together],
                late=[seconds / speed[sample.bytes] for seconds in sample.late],
                late_by_s=sample.late_by_s,
            )
            for sample in each.samples
        ]
        tables.append(TimedSchedule(kind=each.kind, chunks=each.chunks, executor="xla", samples=samples))
    return profile(TimedSchedules(executor="messages", late=core.late, schedules=tables), ranks=ranks)


def runs(made: plan.Plan, nbytes: int) -> tuple[str, str | None]:
    """The kind of schedule, and the executor, for calls of this size."""
    entry = made.collectives[made.index_for(nbytes)]
    return entry.schedule.kind, made.executor_for(False, nbytes)


def entry(made: plan.Plan, nbytes: int) -> Entry:
    return made.collectives[made.index_for(nbytes)]


def test_the_core_runs_where_xlas_collectives_save_nothing() -> None:
    made = planner.plan(together(0.8))
    plan.verify(made)
    assert {runs(made, size) for size in SIZES} == {("direct", None)}
    words = re.sub(r"\n +", " ", explanation(made))
    assert re.search(r"Executor: the core\. Otherwise these calls would take .* by XLA.* or .* by jax.lax", words)


def test_lax_runs_where_it_saves_enough_and_the_core_elsewhere() -> None:
    made = planner.plan(together({size: 1.5 for size in SIZES if size >= 8 * MIB}))
    plan.verify(made)
    for nbytes in (0, 4096, MIB, 4 * MIB, 8 * MIB - 1):
        assert runs(made, nbytes) == ("direct", None)
    for nbytes in (8 * MIB, 12 * MIB, 64 * MIB, 256 * MIB):
        assert runs(made, nbytes) == ("lax", "lax")
    assert entry(made, 16 * MIB).predicted.seconds < entry(made, 16 * MIB).predicted.direct / 1.4
    words = re.sub(r"\n +", " ", explanation(made))
    assert "8 whole schedules were timed between processes" in words
    assert "11 whole schedules were timed by XLA's collectives" in words
    assert re.search(r"Executor: jax.lax's own collective\. Otherwise these calls would take .* by the core", words)


@pytest.mark.parametrize("kind", ["straggler", "late_join", "ring"])
def test_permutes_run_where_they_save_of_both_others(kind: str) -> None:
    made = planner.plan(together(1.0, kind, GAINS))
    plan.verify(made)
    assert runs(made, 4 * MIB) == ("direct", None)
    for nbytes in (8 * MIB, 12 * MIB, 16 * MIB, 64 * MIB):
        assert runs(made, nbytes) == (kind, "xla")
    rows = entry(made, 16 * MIB).alternatives
    assert {row.executor for row in rows} == {None, "xla"}
    [chosen] = [row for row in rows if row.verdict == "chosen"]
    assert (chosen.schedule.kind, chosen.executor) == (kind, "xla")
    assert all(row.seconds >= chosen.seconds for row in rows if row.verdict == "slower")
    words = explanation(made)
    assert "why " + {"straggler": "straggler, 28 chunks", "late_join": "late join, 1 chunk"}.get(kind, kind) in words
    assert re.search(r"count these calls\.\n  Otherwise these calls would take .* by jax.lax", words)
    assert plan.Plan.model_validate(made.model_dump(exclude={"hash"})).hash == made.hash
    assert considered(made)["ranges"]


def test_what_chance_explains_changes_no_executor() -> None:
    noisy = together(1.1)
    tables = [
        each.model_copy(
            update={
                "samples": [
                    sample.model_copy(
                        update={"late": [s * f for s, f in zip(sample.late, (0.9, 1.0, 1.1), strict=True)]}
                    )
                    for sample in each.samples
                ]
            }
        )
        if each.executor == "xla"
        else each
        for each in noisy.timed_schedules.schedules  # type: ignore[union-attr]
    ]
    changed = TimedSchedules(executor="messages", late=3, schedules=tables)
    made = planner.plan(noisy.model_copy(update={"timed_schedules": changed}))
    assert {runs(made, size) for size in SIZES} == {("direct", None)}
    sure = planner.plan(together(1.1))
    assert {runs(sure, size) for size in SIZES} == {("lax", "lax")}


def test_a_gain_at_one_size_alone_changes_no_executor() -> None:
    made = planner.plan(together({16 * MIB: 1.5}))
    assert {runs(made, size) for size in (*SIZES, 96 * MIB)} == {("direct", None)}


@pytest.mark.parametrize(("lax", "executor"), [(0.5, None), (1.5, "lax")])
def test_a_steps_buckets_run_by_one_executor(lax: float, executor: str | None) -> None:
    buckets = [Bucket(name=str(i), bytes=size, ready_s=1e-3 * i) for i, size in enumerate((MIB, 4 * MIB, 16 * MIB))]
    given = Profile.model_validate(together(lax).model_dump() | {"buckets": [each.model_dump() for each in buckets]})
    made = planner.plan(given)
    plan.verify(made)
    assert made.step
    assert {made.executor_for(False, bucket.bytes) for bucket in made.step.planned} == {executor}


def test_a_profile_of_both_survives_its_file_and_splits_by_executor() -> None:
    given = together(1.0)
    assert Profile.model_validate_json(given.model_dump_json()) == given
    assert given.timed_schedules
    parts = given.timed_schedules.by_executor()
    assert [*parts] == ["messages", "xla"]
    assert [len(part.schedules) for part in parts.values()] == [8, 11]
    assert all(each.executor is None for part in parts.values() for each in part.schedules)
    with pytest.raises(ProfileError, match=r"ran on messages and xla, each of which has costs of its own.\n  Cure:"):
        simulate.TimedCosts.of(given.timed_schedules, RANKS, Cluster(1e-6, 1e-10))
    without = [each for each in given.timed_schedules.schedules if each.kind != "lax"]
    with pytest.raises(ValueError, match="but not lax"):
        TimedSchedules(executor="messages", late=3, schedules=without)
