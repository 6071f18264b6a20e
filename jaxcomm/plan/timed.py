"""Converts names of timed schedules to specs and back, and makes plans that run one schedule, to time it."""

from __future__ import annotations

from typing import Final

import pydantic

from jaxcomm import schedules
from jaxcomm.errors import ProfileError
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.origin import Assumptions, PlanProvenance
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.plan.values import Entry, Hybrid, Matches, Predicted, Rotation, Spec, StragglerSpec
from jaxcomm.profile.cluster import Topology
from jaxcomm.profile.timed_schedules import ScheduleName

ROLE: Final = "straggler"
_SPEC: Final[pydantic.TypeAdapter[Spec]] = pydantic.TypeAdapter(Spec)
_NOTHING: Final = "nothing: a plan of one schedule, to be timed"


def timed_spec(name: ScheduleName) -> Spec:
    """The spec of a timed schedule; its late rank has the role "straggler".

    Raises:
      ProfileError: the schedule's parameters do not fit its kind.
    """
    fields = name.model_dump(include={*ScheduleName.model_fields}, exclude_none=True)
    if name.kind in ("broadcast", "direct_join", "straggler", "hybrid", "late_join"):
        fields["late"] = ROLE
    elif name.within is not None:
        fields["late"] = (ROLE,)
    try:
        return _SPEC.validate_python(fields)
    except pydantic.ValidationError as error:
        raise ProfileError(f"a timed schedule is {fields}: {error.errors()[0]['msg']}.") from None


def schedule_name(spec: Spec) -> ScheduleName | None:
    """The name under which a profile holds the times of a schedule.

    None if profiles have no name for the schedule, or if the schedule is for several late ranks.
    """
    fields = spec.model_dump()
    late = fields.pop("late", ())
    if late not in (ROLE, (ROLE,), ()):
        return None
    if spec.kind == "hierarchical" and not late:
        fields = {**fields, "within": None, "across": None}
    try:
        return ScheduleName.model_validate(fields)
    except pydantic.ValidationError:
        return None


def single(
    spec: Spec, ranks: int, late: int = 0, executor: ExecutorName | None = None, topology: Topology | None = None
) -> Plan:
    """A plan that runs one schedule, for at most one late rank, at every size, and predicts nothing.

    Args:
      spec: the schedule; its late rank has the role "straggler".
      ranks: number of ranks.
      late: the late rank.
      executor: as in `Entry`.
      topology: the network, for schedules that are made for hosts.

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
        network=SolvedNetwork(topology=topology, schedules=()) if topology else None,
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
