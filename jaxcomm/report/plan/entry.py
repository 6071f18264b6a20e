"""An entry of a plan in words: its calls, their executor, and the shortest delay at which its schedule saves time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jaxcomm import simulate
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Alternative, Broadcast, Chain, Entry, Hierarchical, LateJoin, Stragglers
from jaxcomm.report.tables import seconds_text
from jaxcomm.report.words import selector_text, spec_text
from jaxcomm.schedules import Schedule

_LAX: Final = "jax.lax's own collective"


def meaning(plan: Plan, entry: Entry, schedule: Schedule) -> Iterator[str]:
    """Yields lines on the calls of an entry, and on the shortest delay at which its schedule saves time.

    Args:
      plan: the plan.
      entry: an entry of the plan.
      schedule: the entry's schedule.
    """
    yield from _runs(plan, entry, schedule)
    yield from _certainty(plan, entry)
    yield from _selector(entry)


def _certainty(plan: Plan, entry: Entry) -> Iterator[str]:
    """If schedules were timed, yields a line on the gain and its error. A trial in the run then tests this gain."""
    saved, error = 1 - entry.predicted.seconds / plain_seconds(plan, entry), entry.predicted.error
    if error and saved > 0 and entry.executor is None:
        sure = "more than the error of the times" if saved > error else "within the error of the times"
        yield (
            f"It is expected to save {saved:.0%}, {sure} ({error:.0%}). The first calls run it and the default one "
            "by turns, and the faster one stays."
        )


def _runs(plan: Plan, entry: Entry, schedule: Schedule) -> Iterator[str]:
    if entry.schedule.kind == "nccl":
        yield "On CUDA devices NCCL's own allreduce runs. On other devices, which have no NCCL, ours runs:"
    is_of_several, is_lax = plan.assumptions.timed_by_xla is not None, entry.schedule.kind == "lax"
    if is_lax and not is_of_several:
        yield "Executor: jax.lax's own collective, as without a plan: no timed schedule saves enough of its time."
    elif entry.executor == "xla":
        yield "Executor: XLA's own collectives, without a deadline; jaxcomm.stats() does not count these calls."
    elif is_of_several:
        yield f"Executor: {_executor(entry)}."
    if is_of_several:
        yield _otherwise(entry)
    if is_lax:
        return
    if schedule.precondition is None:
        yield f"All ranks take part from the start: {schedule.num_rounds} rounds, {schedule.num_chunks} chunks."
        return
    if isinstance(entry.schedule, Stragglers | Chain | Hierarchical):
        first, *later = schedule.phases
        late = ", ".join(map(str, sorted(first.late_ranks)))
        count = schedule.ranks - len(first.late_ranks)
        away = f"ranks {late} are" if len(first.late_ranks) > 1 else f"rank {late} is"
        yield f"While {away} away the other {count} reduce-scatter in {first.num_rounds} rounds."
        for phase in later[:-1]:
            yield f"When rank {phase.late} arrives it joins the owners of the sums in {phase.num_rounds} rounds."
        subject = f"rank {schedule.late} is" if isinstance(entry.schedule, Chain) else "all of them are"
        yield f"Once {subject} there, {schedule.num_rounds} rounds finish the sum."
        return
    if entry.executor == "xla" and isinstance(entry.schedule, LateJoin):
        chunks = f"its {schedule.num_chunks} chunks are" if schedule.num_chunks > 1 else "its buffer is"
        yield (
            f"While rank {schedule.late} is away the other {schedule.ranks - 1} allreduce in a group of their own; "
            f"once it is there, {chunks} broadcast to them, and their sum is sent to it."
        )
        return
    verb = "allreduce" if isinstance(entry.schedule, Broadcast | LateJoin) else "reduce-scatter"
    yield (
        f"While rank {schedule.late} is away the other {schedule.ranks - 1} {verb} in "
        f"{schedule.precondition.num_rounds} rounds; once it is there, {schedule.num_rounds} rounds finish the sum."
    )
    if entry.executor == "xla":  # α and β do not predict the phases of XLA's collectives
        return
    size = entry.predicted.reference_bytes
    before, after = simulate.phases(schedule, size, *simulate.link_of(schedule, size, plan.links))
    plain = plain_seconds(plan, entry)
    if plain <= after:
        return
    yield (
        f"It pays from a delay of {seconds_text(max(0.0, before + after - plain))} on, and saves the most, "
        f"{seconds_text(plain - after)} of {seconds_text(plain)}, from {seconds_text(before)} on."
    )


def _otherwise(entry: Entry) -> str:
    """The entry's shortest predicted time on each of the other executors."""
    fastest: dict[str, Alternative] = {}
    for offer in sorted(entry.alternatives, key=lambda offer: offer.seconds):
        if offer.verdict not in ("ideal_delay", "too_many_ports"):
            fastest.setdefault(_executor(offer), offer)
    others = [
        f"{seconds_text(offer.seconds)} by {name}" + f" ({spec_text(offer.schedule)})" * (name != _LAX)
        for name, offer in fastest.items()
        if name != _executor(entry)
    ]
    return f"Otherwise these calls would take {' or '.join(others)}."


def _executor(runs: Entry | Alternative) -> str:
    return "XLA's collectives" if runs.executor == "xla" else _LAX if runs.schedule.kind == "lax" else "the core"


def _selector(entry: Entry) -> Iterator[str]:
    if selector := entry.selector:
        count = "two schedules" if not selector.by_turns else "several schedules, as ranks are late by turns"
        yield (
            f"Calls on CPUs select one of {count}: {selector_text(selector)}. By the profiled steps that takes "
            f"{seconds_text(selector.seconds)}. Not used between processes in several groups, or with plan='auto'."
        )


def plain_seconds(plan: Plan, entry: Entry) -> float:
    """The predicted time of the fastest schedule that uses no delay."""
    seconds = entry.predicted
    direct = [seconds.direct] if plan.assumptions.ports >= plan.ranks - 1 else []
    theirs = [offer.seconds for offer in entry.alternatives if offer.schedule.kind in ("nccl", "lax")]
    return max(min(seconds.ring, seconds.halving_doubling, *direct, *theirs), 1e-12)
