"""Timed schedules as a plan names them, and plans of one schedule, to time them beside each other."""

from __future__ import annotations

from typing import Final

from jaxcomm import schedules
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.origin import Assumptions, PlanProvenance
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import (
    Broadcast,
    DirectJoin,
    Entry,
    Hybrid,
    LateJoin,
    Matches,
    Plain,
    Predicted,
    Rotation,
    Spec,
    StragglerSpec,
)
from jaxcomm.profile.timed_schedules import TimedKind

ROLE: Final = "straggler"
_NOTHING: Final = "nothing: a plan of one schedule, to be timed"


def timed_spec(kind: TimedKind, chunks: int | None) -> Spec:
    """The spec of a timed schedule; its late rank has the role "straggler"."""
    match kind:
        case "straggler":
            return StragglerSpec(late=ROLE, chunks=chunks or 1)
        case "direct_join":
            return DirectJoin(late=ROLE, chunks=chunks or 1)
        case "late_join":
            return LateJoin(late=ROLE, chunks=chunks or 1)
        case "broadcast":
            return Broadcast(late=ROLE)
        case _:
            return Plain(kind=kind)


def single(spec: Spec, ranks: int, late: int = 0, executor: ExecutorName | None = None) -> Plan:
    """A plan that runs one schedule, for at most one late rank, for calls of every size; it predicts nothing.

    Args:
      spec: the schedule; its late rank has the role "straggler".
      ranks: number of ranks.
      late: the late rank.
      executor: as in `Entry`.

    Raises:
      PlanError: the schedule needs a template, and OR-Tools, which finds it, is not installed.
    """
    has_template = isinstance(spec, StragglerSpec | Hybrid)
    zero = dict.fromkeys(("seconds", "ring", "halving_doubling", "direct", "broadcast", "lower_bound"), 0.0)
    predicted = Predicted.model_validate({"reference_bytes": 0, **zero})
    return Plan(
        matches=Matches(ranks=ranks),
        roles={ROLE: late},
        template=Rotation.model_validate(schedules.template(ranks).to_json()) if has_template else None,
        collectives=(Entry(min_bytes=0, max_bytes=None, schedule=spec, predicted=predicted, executor=executor),),
        assumptions=Assumptions(
            alpha_s=0.0,
            beta_s_per_byte=0.0,
            alpha_assumed=True,
            residual=0.0,
            samples=0,
            link_source=_NOTHING,
            ports=ranks - 1,
            min_gain=0.0,
            delay=None,
        ),
        provenance=PlanProvenance(profile="0" * 64, solver="none", status="NOT_NEEDED", gap=0.0, seed=0, versions={}),
    )
