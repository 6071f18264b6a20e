"""The origin of a plan, as frozen values: its profile, its solver, and the assumptions of its predictions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Count, Number, Seconds, Sha256, Token


class Delay(Value):
    """Statistics of the straggler's lateness over all profiled steps. The first and the last quarter show its drift."""

    steps: Count
    late_steps: Count
    median_s: Seconds
    mean_s: Seconds
    max_s: Seconds
    first_quarter_s: Seconds
    last_quarter_s: Seconds


class TimedBasis(Value):
    """The whole schedules that were timed on an executor. The choice of schedules is based on their times.

    `schedules` schedules were timed at `sizes` sizes from `smallest` to `largest` bytes. A schedule that uses the delay
    must save a share of the time of the best schedule that uses no delay. This share depends on the deviation between
    repeated timings; `margins` are the least and the greatest of these shares. `model_error` is the median relative
    error of modelled times for schedules to which the model was not fitted. For sums of up to `same_bytes` bytes, no
    schedule that uses the delay saves enough (null: such a schedule saves enough at every size, or no rank is late). A
    sum of `same_bytes` bytes takes `same_s` seconds.
    """

    executor: Literal["memory", "messages", "xla"]
    schedules: Count
    sizes: Count
    smallest: Count
    largest: Count
    margins: tuple[Number, Number]
    model_error: Seconds
    same_bytes: Count | None = None
    same_s: Seconds | None = None


class Assumptions(Value):
    """The assumptions of the predictions.

    A round that moves b bytes takes `alpha_s + b·beta_s_per_byte`. `residual` is the relative rms error of this fit
    over `samples` timed calls; with 0 samples, the two numbers were given and not fitted. `link_source` is the
    profile's note on the fit. If `alpha_assumed` is true, `alpha_s` was not measured, and no schedule that uses a delay
    was considered. A rank can exchange with `ports` peers at once. `incast` is the factor by which a byte between hosts
    takes longer if a host exchanges with several other hosts (null: not measured). `delay` is null if no arrivals were
    measured, and `timed` is null if no whole schedules were timed. `timed_by_xla` is for XLA's collectives, if these
    were timed in turns with the executor of `timed`.
    """

    alpha_s: Seconds
    beta_s_per_byte: Seconds
    alpha_assumed: Annotated[bool, Field(strict=True)] = False
    residual: Seconds
    samples: Count
    link_source: Annotated[str, Field(max_length=4096)]
    ports: Count
    incast: Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)] | None = None
    min_gain: Seconds
    delay: Delay | None
    timed: TimedBasis | None = None
    timed_by_xla: TimedBasis | None = None


class PlanProvenance(Value):
    """The origin of a plan: its profile, by hash, and the result of its solver.

    `gap` is the result's relative distance from the solver's bound.
    """

    profile: Sha256
    solver: Token
    status: Token
    gap: Seconds
    seed: Count
    versions: dict[Token, Token]
