"""All alternatives that were considered for a plan, with reasons, as JSON: by byte range, and for the step."""

from __future__ import annotations

from typing import Any

from jaxcomm.plan.halves import HalfEntry
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.step import Step
from jaxcomm.plan.values import Entry, ScheduleSelector
from jaxcomm.report.plan.step import step_lines
from jaxcomm.report.words import range_text, selector_text, spec_text, verdict_text


def considered(plan: Plan) -> dict[str, Any]:
    """The alternatives that were considered, with predicted seconds, verdict and the lower bound of the time.

    Args:
      plan: a verified plan.

    Returns:
      `ranges` has, for every byte range, the chosen schedule, the bound, the gap from the bound to the chosen time, and
      every considered schedule with its verdict's reason in words. `halves` has the same for reduce-scatters and
      all-gathers, but without verdicts, because the fastest schedule is always chosen. `step` has the step's times,
      bound and description, and every bucket: the names of its gradients, its times on the network, and
      `range`, the index of its byte range in `ranges`. `rails` has the rails and their shares. `transport` has the
      choice of TCP or UDP. A decision that was not made is null. If `alpha_assumed` is true, no schedule that uses a
      delay was considered.
    """
    rails = plan.rails.model_dump(mode="json") if plan.rails else None
    return {
        "plan": plan.hash,
        "ranks": plan.ranks,
        "roles": plan.roles,
        "alpha_assumed": plan.assumptions.alpha_assumed,
        "solver": plan.provenance.model_dump(mode="json", include={"solver", "status", "gap", "seed"}),
        "ranges": [_range(plan, entry) for entry in plan.collectives],
        "halves": [_half(entry) for entry in plan.halves] if plan.halves else None,
        "step": _step(plan, plan.step) if plan.step else None,
        "rails": rails,
        "transport": plan.transport.model_dump(mode="json") if plan.transport else None,
    }


def _selector(selector: ScheduleSelector) -> dict[str, Any]:
    return {"words": selector_text(selector), **selector.model_dump(mode="json")}


def _range(plan: Plan, entry: Entry) -> dict[str, Any]:
    predicted = entry.predicted
    return {
        "bytes": range_text(entry),
        "min_bytes": entry.min_bytes,
        "max_bytes": entry.max_bytes,
        "reference_bytes": predicted.reference_bytes,
        "runs": spec_text(entry.schedule),
        "seconds": predicted.seconds,
        "selector": _selector(entry.selector) if entry.selector else None,
        "measured": entry.measured.model_dump(mode="json") if entry.measured else None,
        "lower_bound_seconds": predicted.lower_bound,
        "gap_to_bound": _gap(predicted.seconds, predicted.lower_bound),
        "considered": [
            {
                "words": spec_text(offer.schedule),
                **offer.model_dump(mode="json"),
                "reason": verdict_text(plan, entry, offer),
            }
            for offer in entry.alternatives
        ],
    }


def _half(entry: HalfEntry) -> dict[str, Any]:
    return {
        "bytes": range_text(entry),
        "runs": spec_text(entry.schedule),
        "gap_to_bound": _gap(entry.seconds, entry.lower_bound),
        **entry.model_dump(mode="json", exclude={"alternatives"}),
        "considered": [
            {"words": spec_text(offer.schedule), **offer.model_dump(mode="json")} for offer in entry.alternatives
        ],
    }


def _step(plan: Plan, step: Step) -> dict[str, Any]:
    return {
        **step.model_dump(mode="json", exclude={"planned", "gradients", "accepting"}),
        "accepting": [
            {**each.model_dump(mode="json"), "ratio": each.seconds / each.exact_seconds if each.exact_seconds else 1.0}
            for each in step.accepting
        ],
        "gap_to_bound": _gap(step.seconds, step.lower_bound_seconds),
        "words": list(step_lines(step)),
        "planned": [
            {
                "gradients": [gradient.name for gradient in members],
                "ready_s": members[-1].ready_s,
                "arrival_s": members[-1].ready_s + step.delay_s,
                "words": spec_text(bucket.schedule),
                **bucket.model_dump(mode="json", exclude={"gradients"}),
                "range": plan.index_for(bucket.bytes),
            }
            for bucket, members in zip(step.planned, step.members(), strict=True)
        ],
    }


def _gap(seconds: float, bound: float) -> float:
    """The distance from the bound to the time, as a share of the time."""
    return 1 - bound / seconds if seconds else 0.0
