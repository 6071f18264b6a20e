"""A training step in a plan: its gradients in buckets, and the times at which the network works on each bucket."""

from __future__ import annotations

import itertools
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.values import Count, Seconds, Spec, Token

MAX_GRADIENTS: Final = 16384
Relaxation = Literal["drops", "groups", "drops_and_groups"]
_ROUNDED: Final = 1e-6  # relative difference that rounding of times may cause


class Gradient(Value):
    """A gradient, or a bucket of several gradients in the profile.

    `ready_s` is the time at which the ranks that are not late have the gradient.
    """

    name: Annotated[str, Field(max_length=4096)]
    bytes: Annotated[int, Field(ge=1, le=2**60, strict=True)]
    ready_s: Seconds


class Span(Value):
    """A time span in which the network works on a bucket, in seconds from the step's start."""

    start_s: Seconds
    end_s: Seconds


class Planned(Value):
    """A bucket: the next `gradients` gradients after the previous bucket. One call of `schedule` sums them.

    The last late rank has the bucket `step.delay_s` seconds after the ranks that are not late. The network works on the
    bucket in two spans: in `before`, without the last late rank, and in `after`, once this rank has the bucket.
    `before` is null if the schedule waits for all ranks.
    """

    gradients: Annotated[int, Field(ge=1, le=MAX_GRADIENTS, strict=True)]
    bytes: Count
    schedule: Spec
    before: Span | None
    after: Span


class Accepted(Value):
    """The step's time with its planned buckets if the user accepts the plan's drop policy, its groups, or both.

    With this relaxation the step takes `seconds`; the exact step takes `exact_seconds`. Both times are for links that
    lose packets and join racks as the profile says. `Step.seconds` is the time without packet loss and racks.
    """

    relaxation: Relaxation
    seconds: Seconds
    exact_seconds: Seconds

    @property
    def saving(self) -> float:
        """The share of the exact step's time that is saved; negative if the relaxed step takes longer."""
        return 1 - self.seconds / self.exact_seconds if self.exact_seconds else 0.0


class Step(Value):
    """The gradients of a step, and the buckets in which they are summed, in the order in which the network serves them.

    All times are means over the profiled delays, from the late rank's last gradient to the last sum. `plain_seconds` is
    the time with the profile's `buckets` and schedules that use no delay. `scheduled_seconds` is the time with the same
    buckets and the best schedule for each of their sizes. `seconds` is the time with the `planned` buckets. No choice
    of boundaries, order and schedules takes less than `lower_bound_seconds`. `status` and `gap` are the solver's
    results for the boundaries and schedules that it was offered. `accepting` has the times with drops or groups, which
    the plan never chooses by itself.
    """

    buckets: Count
    bytes: Count
    plain_seconds: Seconds
    seconds: Seconds
    scheduled_seconds: Seconds
    lower_bound_seconds: Seconds
    status: Token
    gap: Seconds
    delay_s: Seconds
    gradients: Annotated[tuple[Gradient, ...], Field(fail_fast=True, min_length=1, max_length=MAX_GRADIENTS)]
    planned: Annotated[tuple[Planned, ...], Field(fail_fast=True, min_length=1, max_length=MAX_GRADIENTS)]
    accepting: Annotated[tuple[Accepted, ...], Field(fail_fast=True, max_length=3)] = ()

    def members(self) -> tuple[tuple[Gradient, ...], ...]:
        """The gradients of every planned bucket."""
        found, first = [], 0
        for bucket in self.planned:
            found.append(self.gradients[first : first + bucket.gradients])
            first += bucket.gradients
        return tuple(found)

    @pydantic.model_validator(mode="after")
    def _holds_every_gradient_once(self) -> Self:
        if self.buckets != len(self.gradients):
            raise ValueError(f"step.buckets is {self.buckets}, but step.gradients has {len(self.gradients)}")
        for i in range(1, len(self.gradients)):
            if self.gradients[i].ready_s < self.gradients[i - 1].ready_s:
                raise ValueError(
                    f"step.gradients[{i}].ready_s is {self.gradients[i].ready_s:g}, before that of the previous "
                    "gradient; gradients must be in the order in which they are ready"
                )
        held = sum(bucket.gradients for bucket in self.planned)
        if held != len(self.gradients):
            raise ValueError(f"step.planned holds {held} gradients; step.gradients has {len(self.gradients)}")
        for i, (bucket, members) in enumerate(zip(self.planned, self.members(), strict=True)):
            total = sum(gradient.bytes for gradient in members)
            if bucket.bytes != total:
                raise ValueError(f"step.planned[{i}].bytes is {bucket.bytes}; its gradients have {total}")
        if self.bytes != (total := sum(gradient.bytes for gradient in self.gradients)):
            raise ValueError(f"step.bytes is {self.bytes}; its gradients have {total}")
        return self

    @pydantic.model_validator(mode="after")
    def _network_serves_one_at_a_time(self) -> Self:
        busy: list[tuple[float, float, str]] = []
        for i, (bucket, members) in enumerate(zip(self.planned, self.members(), strict=True)):
            ready = members[-1].ready_s
            for name, span, earliest in (
                ("before", bucket.before, ready),
                ("after", bucket.after, ready + self.delay_s),
            ):
                if span:
                    busy.append((span.start_s, span.end_s, _checked(f"step.planned[{i}].{name}", span, earliest)))
        for earlier, later in itertools.pairwise(sorted(busy)):
            if later[0] < earlier[1] * (1 - _ROUNDED):
                raise ValueError(f"{later[2]} starts at {later[0]:g} s, while the network still works on {earlier[2]}")
        return self

    @pydantic.model_validator(mode="after")
    def _beats_no_bound(self) -> Self:
        if self.seconds < self.lower_bound_seconds:
            raise ValueError(
                f"step.seconds is {self.seconds:g}, below step.lower_bound_seconds, {self.lower_bound_seconds:g}"
            )
        return self


def _checked(where: str, span: Span, earliest: float) -> str:
    if span.end_s < span.start_s:
        raise ValueError(f"{where} ends at {span.end_s:g} s, before it starts at {span.start_s:g} s")
    if span.start_s < earliest * (1 - _ROUNDED):
        raise ValueError(f"{where} starts at {span.start_s:g} s, before the bucket is ready at {earliest:g} s")
    return where
