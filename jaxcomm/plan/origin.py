"""Where a plan comes from: the assumptions of its predictions, its profile and its solver, as frozen values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Count, Number, Seconds, Sha256, Token


class Delay(Value):
    """How late the straggler was, over all profiled steps; the quarters show the drift."""

    steps: Count
    late_steps: Count
    median_s: Seconds
    mean_s: Seconds
    max_s: Seconds
    first_quarter_s: Seconds
    last_quarter_s: Seconds


class TimedBasis(Value):
    """The whole schedules that were timed on an executor, on whose times the choice rests.

    `schedules` of them were timed at `sizes` sizes from `smallest` to `largest` bytes. `margins` are the least and the
    most that one must save of another's time, by the deviation of its turns; `model_error` is the median error, as a
    share, of modelled times on schedules that the model was not fitted to. For sums of up to `same_bytes`, which take
    `same_s` there, no schedule that uses the delay saves as much (null: some does at every size, or nobody is late).
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

    A round that moves b bytes takes `alpha_s + b·beta_s_per_byte`; `residual` is the relative rms of that fit over
    `samples` timed calls (0 samples: given, not fitted), and `link_source` the profile's words on it. With
    `alpha_assumed` no measurement gives `alpha_s`, and no schedule that uses a delay was considered. A rank can
    exchange with `ports` peers at once; if a host exchanges with several others, a byte between them takes `incast`
    times as long (null: not measured). `delay` is null when no arrivals were measured, `timed` when no whole schedules
    were timed; `timed_by_xla` is of XLA's collectives, where these took turns with the executor of `timed`.
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
    """Where the plan comes from: its profile, and how far its solver got (`gap`: relative distance to its bound)."""

    profile: Sha256
    solver: Token
    status: Token
    gap: Seconds
    seed: Count
    versions: dict[Token, Token]
