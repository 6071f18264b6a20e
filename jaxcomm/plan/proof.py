"""Proofs for whole plans.

`verify_embedded` quickly proves the parts that the file itself defines. `verify` proves all schedules that the plan can
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import get_args

from jaxcomm.errors import PlanError
from jaxcomm.plan import groups
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Chain, Hybrid, Nccl, StragglerSpec, Transfers
from jaxcomm.program.verifier import Proof, verify_schedule, verify_template
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.halves import Half


def verify(subject: Plan | Schedule) -> Proof:
    """Proves that a schedule, or every schedule of a plan, gives every rank the sum.

    For a plan, the proof also covers the groups and the drop policy.

    Args:
      subject: a schedule, or a plan.

    Returns:
      The proof. For a plan, the counts are totals, and `chunks` is the largest number of chunks of any schedule.

    Raises:
      PlanError: a proof fails. For a plan, the error text has the JSON path of the entry.

    Example:
      >>> jaxcomm.plan.verify(jaxcomm.schedules.ring(4)).ranks
      4
    """
    if isinstance(subject, Schedule):
        return verify_schedule(subject)
    _check_groups(subject)
    found = proofs(subject)
    counts = {"entries": len(subject.collectives) + len(subject.halves or ()), "schedules": len(found)}
    for proof in found:
        for name, count in proof.counts.items():
            counts[name] = counts.get(name, 0) + count
    methods = [proof.method for proof in found]
    _check_loss(subject)
    if subject.drops:
        counts["layers that may drop"] = len(subject.drops.layers)
        methods.append("drop policy by computing it again")
    chunks = max(proof.chunks for proof in found)
    return Proof("plan", subject.ranks, chunks, counts, "; ".join(dict.fromkeys(methods)))


def proofs(plan: Plan) -> list[Proof]:
    """The proof of each distinct schedule of a plan, in the order of the plan's entries, lost rails and halves.

    Raises:
      PlanError: see `verify`.

    Example:
      >>> {proof.ranks for proof in jaxcomm.plan.proofs(jaxcomm.plan.load("plan.json"))}
      {8}
    """
    found: dict[Schedule, Proof] = {}
    for name, schedule in named_schedules(plan):
        if schedule not in found:
            try:
                found[schedule] = verify_schedule(schedule)
            except PlanError as error:
                raise PlanError(f"{name}: {error}") from None
    return list(found.values())


def named_schedules(plan: Plan) -> Iterator[tuple[str, Schedule]]:
    """All schedules that a plan can run, each with its place in the file."""
    for i, name, schedule in plan.all_reduces():
        yield f"collectives[{i}].{name}", schedule
    for i, lost in enumerate(plan.lost_rails):
        for j, schedule in enumerate(lost.schedules):
            yield f"lost_rails[{i}].ranges[{j}].schedule", schedule
    for i, half in enumerate(plan.halves or ()):
        for collective in get_args(Half):
            yield f"halves[{i}].schedule", plan.half_of(collective, half.schedule)


def decisions(plan: Plan) -> Iterator[tuple[str, str]]:
    """The decisions of a plan other than its schedules, each with a summary of its proof.

    Groups and drops are proved here. The values of rails and the step were checked when the plan was constructed.

    Raises:
      PlanError: see `verify`.
    """
    if executors := plan.executors:
        own = f"schedules run by {executors.own}" if executors.own else "no executor of ours was timed"
        nccl = sum(isinstance(entry.schedule, Nccl) for entry in plan.collectives)
        ranges = f"{nccl} of {_count(plan.collectives, 'byte range')} by NCCL, whose sum is not ours to prove"
        yield "executors", f"{own}; {ranges}"
    kinds = [entry.schedule.kind for entry in plan.collectives] + [half.schedule.kind for half in plan.halves or ()]
    if left := kinds.count("lax"):
        yield "lax", f"{left} of {_count(kinds, 'byte range')} left to jax.lax, whose sums are not ours to prove"
    if rails := plan.rails:
        ranges, members = _count(rails.ranges, "byte range"), _count(rails.members, "rail")
        yield "rails", f"every size is in one of {ranges}, shares of {members} sum to 1"
    _check_groups(plan)
    if divided := plan.groups:
        deal = f"{_count(divided.iterations, 'iteration')}, a partition each, at most one group per uplink"
        yield "groups", f"{deal}, all ranks meet, rho = {divided.rho:.3g}"
    _check_loss(plan)
    if policy := plan.drops:
        layers = (
            f"{_count(policy.layers, 'layer')}, at most {policy.bound:.3g} of each dropped, {policy.budget:.3g} of all"
        )
        queues = f", {_count(policy.buffer.queues, 'queue')} that lose what is stated" if policy.buffer else ""
        yield "drops", layers + queues
    if chosen := plan.transport:
        yield (
            "transport",
            f"{chosen.protocol}: {chosen.loss_rate:.2%} of packets get lost, udp is from {chosen.udp_from:.2%} on",
        )
    if step := plan.step:
        held = f"{_count(step.gradients, 'gradient')}, each in one of {_count(step.planned, 'bucket')}"
        yield "step", f"{held}, which run the schedules of their sizes, one at a time; not below the bound"


def verify_embedded(plan: Plan) -> None:
    """Proves the parts that a plan file itself defines: groups, solved schedules, chains and the template.

    All other schedules come from the constructors in `jaxcomm.schedules`, so a valid plan file cannot make them wrong.

    Raises:
      PlanError: a solved schedule or a chain does not give every rank the sum, the template does not spread every chunk
        to every rank, or the proof of the groups fails.
    """
    _check_groups(plan)
    specs = {spec for entry in plan.collectives for spec in entry.specs.values()}
    for spec in specs:
        if isinstance(spec, Transfers):
            try:
                verify_schedule(plan.schedule_of(spec))
            except PlanError as error:
                raise PlanError(f"network.schedules[{spec.index}]: {error}") from None
    for least in {spec.least(plan.ranks) for spec in specs if isinstance(spec, Chain)}:
        verify_schedule(plan.schedule_of(least))
    template = plan.rotation
    if template is None:
        return
    covered = {spec.chunks for spec in specs if isinstance(spec, StragglerSpec | Chain)}
    covered |= {spec.covered for spec in specs if isinstance(spec, Hybrid)}
    for chunks in sorted({template.least(chunks) for chunks in covered} - {1}):  # a single chunk needs no template
        verify_template(template, chunks)


def _check_groups(plan: Plan) -> None:
    if plan.groups:
        groups.prove(plan.groups, plan.ranks, plan.assumptions.alpha_s, plan.assumptions.beta_s_per_byte)


def _check_loss(plan: Plan) -> None:
    for mistake in plan.drops.mistakes() if plan.drops else ():
        raise PlanError(mistake)


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
