"""Proofs for whole plans: of what a file brings, quickly; and of everything that a plan can run."""

from __future__ import annotations

from jaxcomm.errors import PlanError
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Hybrid, Straggler, Transfers
from jaxcomm.plan.verifier import Proof, verify_schedule, verify_template
from jaxcomm.schedules import Schedule


def verify(subject: Plan | Schedule) -> Proof:
    """Proves that a schedule, or every schedule of a plan, gives every rank the sum, and that its loss policy holds.

    Args:
      subject: a schedule, or a plan.

    Returns:
      What was proved; for a plan the counts are totals, and `chunks` the largest number of any schedule.

    Raises:
      PlanError: what is wrong; in a plan with the JSON path of the entry.
    """
    if isinstance(subject, Schedule):
        return verify_schedule(subject)
    found = proofs(subject)
    counts = {"entries": len(subject.collectives), "schedules": len(found)}
    for proof in found:
        for name, count in proof.counts.items():
            counts[name] = counts.get(name, 0) + count
    methods = [proof.method for proof in found]
    if subject.loss:
        for mistake in subject.loss.mistakes():
            raise PlanError(mistake)
        counts["layers that may lose"] = len(subject.loss.layers)
        methods.append("loss policy by computing it again")
    chunks = max(proof.chunks for proof in found)
    return Proof("plan", subject.ranks, chunks, counts, "; ".join(dict.fromkeys(methods)))


def proofs(plan: Plan) -> list[Proof]:
    """The proof of each different schedule of a plan, in the order of its entries.

    Raises:
      PlanError: see `verify`.
    """
    found: dict[Schedule, Proof] = {}
    for i, schedule in enumerate(plan.schedules):
        if schedule not in found:
            try:
                found[schedule] = verify_schedule(schedule)
            except PlanError as error:
                raise PlanError(f"collectives[{i}].schedule: {error}") from None
    return list(found.values())


def check_brought(plan: Plan) -> None:
    """Proves what a plan brings itself: solved schedules, and the template for every number of chunks it is used for.

    Nothing else in a valid plan file can be wrong: the rest comes from the constructors in `jaxcomm.schedules`.

    Raises:
      PlanError: a solved schedule, or the template, does not spread every chunk to every rank.
    """
    brought = {entry.schedule: schedule for entry, schedule in zip(plan.collectives, plan.schedules, strict=True)}
    for spec, schedule in brought.items():
        if isinstance(spec, Transfers):
            try:
                verify_schedule(schedule)
            except PlanError as error:
                raise PlanError(f"network.schedules[{spec.index}]: {error}") from None
    template = plan.rotation
    if template is None:
        return
    specs = [entry.schedule for entry in plan.collectives]
    covered = {spec.chunks for spec in specs if isinstance(spec, Straggler)}
    covered |= {spec.covered for spec in specs if isinstance(spec, Hybrid)}
    for chunks in sorted(covered - {1}):  # a single chunk is spread without a template
        verify_template(template, chunks)
