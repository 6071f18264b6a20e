"""A plan in words and tables: its schedules, the reasons, the alternatives, and when it would not help."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

from jaxcomm.log import printable
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.step import Step
from jaxcomm.plan.values import Entry, Transfers
from jaxcomm.report.plan.drops import drops_section
from jaxcomm.report.plan.entry import meaning, plain_seconds
from jaxcomm.report.plan.groups import groups_section
from jaxcomm.report.plan.halves import halves_section
from jaxcomm.report.plan.lost_rails import lost_rail_lines
from jaxcomm.report.plan.network import network_lines
from jaxcomm.report.plan.rails import rail_notes, rail_table, rail_times_table
from jaxcomm.report.plan.step import step_lines, step_table
from jaxcomm.report.plan.timed_schedules import (
    extrapolated_lines,
    measured_cells,
    measured_lines,
    nothing_to_plan_lines,
)
from jaxcomm.report.plan.transport import transport_section
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import (
    TOLERATED,
    alpha_assumed_text,
    fit_text,
    nobody_late_text,
    range_text,
    runs_text,
    saved_text,
    timed_text,
    verdict_text,
)
from jaxcomm.schedules import Schedule


def explanation(plan: Plan) -> str:
    """The whole explanation of a plan, as plain text.

    Args:
      plan: a verified plan.

    Returns:
      Paragraphs and tables, without a trailing newline.
    """
    text = "\n\n".join(
        [
            f"Plan {plan.hash[:12]} for {plan.ranks} ranks{_late(plan)}.",
            "Schedules by bytes of one rank's buffer, and predicted times from the late rank's arrival on\n"
            + textwrap.indent(summary(plan), "  ")
            + f"\n\n  {_bound(plan)}",
            "Assumptions\n" + _list(_assumptions(plan)),
            *([_step(plan, plan.step)] if plan.step else []),
            *(_comparison(plan, entry, schedule) for entry, schedule in _ranges(plan)),
            *([halves_section(plan.halves)] if plan.halves else []),
            *(
                [
                    "Shares per rail\n" + textwrap.indent(rail_table(rails), "  "),
                    "Predicted times over the rails\n" + textwrap.indent(rail_times_table(rails), "  "),
                    _list(rail_notes(rails)),
                ]
                if (rails := plan.rails)
                else []
            ),
            *([groups_section(plan.groups)] if plan.groups else []),
            *([drops_section(plan.drops)] if plan.drops else []),
            *([transport_section(plan.transport)] if plan.transport else []),
            "When this would not help\n" + _list(_limits(plan)),
        ]
    )
    return printable(text, keep="\n")


def summary(plan: Plan) -> str:
    """One row per byte range: its schedule, its predicted time, and other schedules' times. Notes follow the rows."""
    rows: list[list[str | None]] = []
    for entry, _ in _ranges(plan):
        seconds = entry.predicted
        others = (seconds.seconds, seconds.ring, seconds.halving_doubling, seconds.broadcast, seconds.lower_bound)
        rows.append(
            [
                range_text(entry),
                runs_text(entry) + " (calls select)" * bool(entry.selector),
                bytes_text(seconds.reference_bytes),
                *map(seconds_text, others),
                saved_text(_saved(plan, entry)),
            ]
        )
    head = ["bytes", "runs", "times for", "time", "ring", "halving/doubling", "broadcast", "bound", "saves"]
    given = plan.assumptions
    if any(entry.measured for entry, _ in _ranges(plan)):
        head += ["measured", "default", "saved"]
        rows = [row + measured_cells(entry) for row, (entry, _) in zip(rows, _ranges(plan), strict=True)]
    assumed = [alpha_assumed_text(given.alpha_s)] * given.alpha_assumed
    lines = [*assumed, *nothing_to_plan_lines(plan), *extrapolated_lines(plan), *_slower_lines(plan)]
    return "\n".join([table(head, rows), *lines])


def _saved(plan: Plan, entry: Entry) -> float:
    """The share of `plain_seconds` that an entry saves; negative if the entry takes longer."""
    return 1 - entry.predicted.seconds / plain_seconds(plan, entry)


def _slower_lines(plan: Plan) -> Iterator[str]:
    """Yields an explanation if a schedule of the plan is predicted to take longer than another schedule."""
    if any(_saved(plan, entry) < -TOLERATED and not entry.measured for entry, _ in _ranges(plan)):
        yield textwrap.fill(
            "saves none: another schedule is predicted to be faster, but by less than the prediction's error, or it "
            "was not timed at that size, or cannot run in the step's buckets. `jaxcomm plan --try` measures both.",
            110,
        )


def _bound(plan: Plan) -> str:
    if plan.assumptions.timed:
        return "bound: the least time with one port per rank at the speed below, or the least timed one, if less."
    ports = plan.assumptions.ports
    peers = "one peer" if ports == 1 else f"{ports} peers"
    return f"bound: no allreduce takes less with one port per rank, at the speed below, that reaches {peers} at once."


def _ranges(plan: Plan) -> Iterator[tuple[Entry, Schedule]]:
    """Yields the entries with their schedules. Joins adjacent equal entries and takes the times of the widest entry."""
    pairs = zip(plan.collectives, plan.schedules, strict=True)
    for _, alike in itertools.groupby(pairs, key=_what_runs):
        found = list(alike)
        first, last = found[0][0], found[-1][0]
        widest, schedule = max(found, key=lambda pair: (pair[0].max_bytes or 2**64) / max(1, pair[0].min_bytes))
        yield widest.model_copy(update={"min_bytes": first.min_bytes, "max_bytes": last.max_bytes}), schedule


def _what_runs(pair: tuple[Entry, Schedule]) -> tuple[object, ...]:
    entry, _ = pair
    return entry.schedule, entry.executor, entry.selector, entry.measured


def entry_for(plan: Plan, nbytes: int) -> Entry:
    """The plan's entry for calls of `nbytes` bytes."""
    return next(entry for entry in reversed(plan.collectives) if entry.min_bytes <= nbytes)


def headline(plan: Plan) -> tuple[Entry, Schedule]:
    """The entry that saves the largest share, with its schedule; a reader should look at this entry first."""

    def share(pair: tuple[Entry, Schedule]) -> float:
        return _saved(plan, pair[0])

    return max(zip(plan.collectives, plan.schedules, strict=True), key=share)


def _late(plan: Plan) -> str:
    where = [f" on {name}" for name in plan.hosts] if plan.hosts else [""] * plan.ranks
    return "".join(f"; {printable(f'{name} is rank {rank}{where[rank]}')}" for name, rank in sorted(plan.roles.items()))


def _assumptions(plan: Plan) -> Iterator[str]:
    given, made = plan.assumptions, plan.provenance
    speed = f"{1e-9 / given.beta_s_per_byte:.3g} GB/s" if given.beta_s_per_byte else "no limit of bandwidth"
    fit = fit_text(given.samples, given.residual, given.alpha_assumed)
    yield f"A round takes {seconds_text(given.alpha_s)} and moves {speed} per rank ({fit}; {given.link_source})."
    if given.timed:
        yield timed_text(given.timed)
    if given.timed_by_xla:
        yield timed_text(given.timed_by_xla)
        yield (
            "Both were timed by turns, by the host's clock. XLA's collectives replace the core where they save more of "
            "its time than turns deviate by chance (95%), at the timed sizes on both sides."
        )
    if given.incast:
        more = given.incast - 1
        yield f"Where a host exchanges with several others, and not as in a ring, a byte takes {more:.1%} longer."
    if plan.executors:
        yield from _executors(plan.executors)
    if (delay := given.delay) is None:
        yield "The profile does not say which rank is late, so no schedule that uses a delay was considered."
    elif given.alpha_assumed:
        yield (
            f"One rank was last in {delay.late_steps} of {delay.steps} steps, behind the next by "
            f"{seconds_text(delay.median_s)} (median). α is assumed, so no schedule that uses a delay was considered."
        )
    elif not plan.roles:
        nobody = nobody_late_text("a rank", delay, plan.ranks)
        yield f"{nobody[0].upper()}{nobody[1:]}. So no schedule that uses a delay was considered."
    else:
        yield (
            f"The straggler was last in {delay.late_steps} of {delay.steps} steps, behind the next rank by "
            f"{seconds_text(delay.median_s)} (median; mean {seconds_text(delay.mean_s)}, "
            f"greatest {seconds_text(delay.max_s)}; first quarter of the steps {seconds_text(delay.first_quarter_s)}, "
            f"last quarter {seconds_text(delay.last_quarter_s)})."
        )
    if plan.network:
        yield from network_lines(plan.network, plan.groups)
    yield from lost_rail_lines(plan)
    yield f"A rank exchanges with {given.ports} peer{'s' * (given.ports != 1)} at once."
    if given.timed:
        least, most = given.timed.margins
        yield (
            "A schedule that uses the delay must be faster than the fastest other one, by more than turns deviate by "
            f"chance (95%), at the timed sizes on both sides: {least:.0%} to {most:.0%}, by size and schedule."
        )
    elif not given.alpha_assumed:
        yield f"A schedule that uses the delay must save {100 * given.min_gain:.3g}% of the fastest other one's time."
    if plan.step:
        yield from step_lines(plan.step)
    solver = (
        f"by {made.solver}, {made.status.lower()}, gap {made.gap:.2%}" if made.solver != "none" else "without a solver"
    )
    yield f"Made from profile {made.profile[:12]} {solver}."


def _executors(executors: Executors) -> Iterator[str]:
    if executors.own:
        subject = "one kernel over memory that all read" if executors.own == "fused" else "sends and receives"
        yield f"Schedules were timed on CUDA devices as {subject} (executor {executors.own})."
    if table := executors.nccl:
        yield (
            f"NCCL's own allreduce was timed for {len(table)} sizes from {bytes_text(table[0].bytes)} to "
            f"{bytes_text(table[-1].bytes)}. It is chosen where it is faster than every schedule that uses "
            "no delay; a schedule that uses the delay must be faster than it, too."
        )


def _comparison(plan: Plan, entry: Entry, schedule: Schedule) -> str:
    header = ["considered", f"time for {bytes_text(entry.predicted.reference_bytes)}", "saves", "verdict"]
    offers = sorted(entry.alternatives, key=lambda offer: offer.verdict != "ideal_delay")
    # An `ideal_delay` alternative is left out if another alternative has the same schedule, executor and time.
    distinct = {(offer.schedule, offer.executor, offer.seconds): offer for offer in offers}.values()
    cells: list[list[str | None]] = [
        [
            runs_text(offer),
            seconds_text(offer.seconds),
            f"{offer.gain:+z.1%}" if offer.gain >= 0 else "none",
            verdict_text(plan, entry, offer),
        ]
        for offer in sorted(distinct, key=lambda offer: offer.seconds)
    ]
    if found := entry.measured:
        header = [*header, f"measured for {bytes_text(found.bytes)}"]
        seconds = {each.schedule: each.seconds for each in found.candidates} | {entry.schedule: found.seconds}
        ordered = sorted(distinct, key=lambda offer: offer.seconds)
        measured = [None if offer.executor else seconds.get(offer.schedule) for offer in ordered]
        cells = [[*row, seconds_text(each) if each else None] for row, each in zip(cells, measured, strict=True)]
    return "\n".join(
        [
            f"{range_text(entry)}: why {runs_text(entry)}",
            *(f"  {line}" for line in (*meaning(plan, entry, schedule), *measured_lines(entry))),
            textwrap.indent(table(header, cells), "  "),
        ]
    )


def _limits(plan: Plan) -> Iterator[str]:
    if any(schedule.precondition for schedule in plan.schedules):
        yield "The late rank arrives before its schedule pays; the delay from which it pays is given above."
        if any(isinstance(entry.schedule, Transfers) for entry in plan.collectives):
            yield "Another rank is late: the solved schedules are for this one; profile and plan again."
        else:
            role, rank = min(plan.roles), min({*range(plan.ranks)} - {*plan.roles.values()})
            yield (
                "Another rank is late: bind the role to it when the plan is loaded, such as rank "
                f'{rank} by `jaxcomm.plan.load(path, roles={{"{role}": {rank}}})`; no new plan is needed.'
            )
    else:
        yield "No schedule of this plan uses a delay: a late rank costs all of its lateness."
    yield "Other ranks, links or sizes than those measured: profile and plan again."


def _step(plan: Plan, step: Step) -> str:
    late = "the late rank is" if len(plan.roles) < 2 else "the last of the late ranks is"
    title = f"The step, if {late} late by {seconds_text(step.delay_s)}"
    return f"{title}\n{textwrap.indent(step_table(step), '  ')}"


def _list(lines: Iterator[str]) -> str:
    return "\n".join(textwrap.fill(line, 110, initial_indent="  - ", subsequent_indent="    ") for line in lines)
