"""The share of a gradient that its sum may leave out, and the policy that chooses the segments to leave out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, Self, get_args

import jax
import jax.numpy as jnp

import jaxcomm.plan
from jaxcomm.errors import PlanError

if TYPE_CHECKING:
    from jaxcomm.plan import Plan
    from jaxcomm.profile import Layer

Policy = Literal["agreed", "network", "deadline"]
_MIN_LOSSY_SEGMENT = 1024  # minimum bytes of a segment that the network may lose
_MOST_SECONDS = 1e6  # maximum of a time limit


@dataclass(frozen=True)
class Drop:
    """The share of a gradient that a sum may leave out, and the policy that chooses the segments to leave out.

    Policy "agreed": the ranks add up each segment's importance, and agree on the segments that no rank sends, so the
    sum sends 1 − p of the bytes. Policy "network" leaves out only segments that the network loses. Between processes
    over UDP, lost packets of the more important half of a tensor's segments are retransmitted. Other lost packets are
    not retransmitted while the loss stays within the share. Every element is averaged over the ranks whose packets
    arrived. This policy saves the time of retransmissions.

    Policy "deadline" leaves out only segments that are late, and also needs UDP. Lost packets are retransmitted. The
    rank that sums a chunk waits for `seconds`. After that, it sums the segments that have arrived as soon as these
    include the important half and the missing segments stay within the share. This policy limits the wait for late
    segments.

    Attributes:
      bound: the share p of a tensor that may be left out, in [0, 1); None: `bounds` names every tensor.
      policy: "agreed", "network" or "deadline".
      bounds: the shares of the tensors whose share differs from `bound`. The keys are the tensors' names as
        `jax.tree_util.keystr` gives them with `simple=True, separator="/"`.
      segment_bytes: size of a segment, a multiple of 8; at least 1024 with "network" and "deadline".
      priorities: with "network" and "deadline", the priorities of the tensors' packets, 0 first, by the same names as
        `bounds`. Packets of other tensors, and of tensors that may lose no whole segment, have the last priority.
        JAXCOMM_UDP_PRIORITIES is the number of priorities.
      seconds: with "deadline", the time limit: the seconds that a rank waits for the others' segments, from its own
        arrival at the sum. "auto": 1.25 times the median time of the last 32 sums; the first 8 sums leave nothing out.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", sections 3.2 and 4.2,
    appendix A; the agreement and the time limit are ours.

    Example:
      >>> drop = jaxcomm.train.Drop(0.1, bounds={"bias": 0.0}, segment_bytes=64)
      >>> drop.share("bias", jnp.ones(8)), drop.dropped("kernel", jnp.ones(1024))  # 6 segments of 64 bytes
      (0.0, 6)
    """

    bound: float | None = 0.1
    policy: Policy = "agreed"
    bounds: Mapping[str, float] = field(default_factory=dict, hash=False)
    segment_bytes: int = 4096
    seconds: float | Literal["auto"] = "auto"
    priorities: Mapping[str, int] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, plan: str | os.PathLike[str] | Plan, policy: Policy = "agreed") -> Self:
        """The drop that a plan allows. It has each layer's share and priority, and the plan's segment size.

        The sum raises ValueError unless its tensors are the plan's layers.

        Args:
          plan: path of a plan file, or a `jaxcomm.plan.Plan`.
          policy: "agreed", "network" or "deadline"; a plan allows all three.

        Raises:
          PlanError: the plan cannot be read, or has no drop policy.
        """
        if isinstance(plan, str | os.PathLike):
            where, plan = f"{os.fspath(plan)}: ", jaxcomm.plan.load(plan)
        else:
            where = ""
        if plan.drops is None:
            raise PlanError(
                f"{where}the plan {plan.hash[:12]} has no drop policy.\n"
                "  Cure: plan with `jaxcomm plan --drop-bound`, or from a profile with a `tolerance` "
                "(`jaxcomm profile drop-bound`)."
            )
        return cls(
            bound=None,
            policy=policy,
            bounds={layer.name: layer.share for layer in plan.drops.layers},
            segment_bytes=plan.drops.segment_bytes,
            priorities={layer.name: layer.priority for layer in plan.drops.layers},
        )

    @classmethod
    def front_first(cls, layers: Sequence[Layer], bound: float, budget: float, policy: Policy = "agreed") -> Self:
        """Drops at most `bound` of each layer and `budget` of all bytes; the front layers use the budget first.

        Args:
          layers: the layers in forward order, as `jaxcomm.train.layers` finds them.
          bound: the share of a layer, in [0, 1).
          budget: the share of all bytes, from 0 to `bound`.
          policy: "agreed", "network" or "deadline".

        Source: section 4.2.2 of the paper.
        """
        if not 0 <= budget <= bound:
            raise ValueError(f"Drop: budget is {budget}; it is the share of all bytes, from 0 to the bound, {bound}")
        from jaxcomm.plan.drops import front_first

        shares = front_first([layer.bytes for layer in layers], bound, budget)
        names = [layer.name for layer in layers]
        return cls(bound=None, policy=policy, bounds=dict(zip(names, shares, strict=True)))

    def __post_init__(self) -> None:
        shares = {} if self.bound is None else {"bound": self.bound}
        if not isinstance(self.bounds, Mapping):
            raise ValueError(f"Drop: bounds is {self.bounds!r}; it maps tensors' names to shares, {{'kernel': 0.1}}")
        for name, share in (shares | {f"bounds[{key!r}]": share for key, share in self.bounds.items()}).items():
            if not (isinstance(share, Real) and 0 <= share < 1):
                raise ValueError(f"Drop: {name} is {share!r}; it is the share of a tensor, from 0 to below 1")
        if self.policy not in get_args(Policy):
            raise ValueError(f'Drop: policy is "{self.policy}"; it is "agreed", "network" or "deadline"')
        if not isinstance(self.segment_bytes, int) or self.segment_bytes < 8 or self.segment_bytes % 8:
            raise ValueError(f"Drop: segment_bytes is {self.segment_bytes!r}; it must be a positive multiple of 8")
        if self.policy != "agreed" and self.segment_bytes < _MIN_LOSSY_SEGMENT:
            raise ValueError(
                f'Drop: segment_bytes is {self.segment_bytes}; with the policy "{self.policy}" it must be '
                f"{_MIN_LOSSY_SEGMENT} or more"
            )
        if self.seconds != "auto" and self.policy != "deadline":
            raise ValueError(
                f'Drop: seconds is {self.seconds!r} with the policy "{self.policy}"; only "deadline" has a time limit'
            )
        is_time = isinstance(self.seconds, Real) and 0 < self.seconds <= _MOST_SECONDS
        if self.seconds != "auto" and not is_time:
            raise ValueError(
                f'Drop: seconds is {self.seconds!r}; it is "auto" or a number above 0, up to {_MOST_SECONDS:g}'
            )
        if not isinstance(self.priorities, Mapping):
            raise ValueError(
                f"Drop: priorities is {self.priorities!r}; it maps tensors' names to numbers, {{'bias': 0}}"
            )
        for name, priority in self.priorities.items():
            is_number = isinstance(priority, Integral) and not isinstance(priority, bool)
            if not is_number or priority < 0:
                raise ValueError(f"Drop: priorities[{name!r}] is {priority!r}; it is a whole number, 0 or more")

    def check(self, names: Sequence[str]) -> None:
        """Checks that each bound and each priority has a tensor, and that each tensor has a bound.

        Raises:
          ValueError: a bound or a priority has no tensor, or a tensor has no bound.
        """
        known = ", ".join([*map(repr, sorted(self.bounds)[:8]), *["…"] * (len(self.bounds) > 8)])
        if self.bound is None and (missing := [name for name in names if name not in self.bounds]):
            raise ValueError(
                f"Drop: the tensor {missing[0]!r} has no bound; there are bounds of {known or 'none'}.\n"
                "  Cure: plan from a profile of this model (`jaxcomm.train.layers` names its layers), or give "
                "`dataclasses.replace(drop, bound=…)` for tensors without one."
            )
        for part, keys in (("bounds", self.bounds), ("priorities", self.priorities)):
            if unknown := sorted(set(keys) - set(names)):
                raise ValueError(
                    f"Drop: {part}[{unknown[0]!r}] names no tensor here; the tensors are "
                    f"{', '.join(map(repr, names))}.\n"
                    "  Cure: name it as `jax.tree_util.keystr` does, or plan from a profile of this model."
                )

    def share(self, name: str, x: jax.Array) -> float:
        """The share of a tensor that may be left out; 0 if its elements are not floats of 16, 32 or 64 bits."""
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 2:
            return 0.0
        share = self.bounds.get(name, self.bound)
        assert share is not None  # `check` ensures this
        return share

    def dropped(self, name: str, x: jax.Array) -> int:
        """The number of whole segments of a tensor that may be left out, computed exactly, as in the plan."""
        share = Fraction(repr(float(self.share(name, x))))
        return math.floor(share * x.size * x.dtype.itemsize / self.segment_bytes)


def check_drop(where: str, drop: object) -> None:
    """Raises TypeError in the name of `jaxcomm.<where>` if `drop` is not a Drop."""
    if not isinstance(drop, Drop):
        raise TypeError(
            f"jaxcomm.{where}: drop is {drop!r}; it must be a jaxcomm.train.Drop.\n"
            "  Cure: drop=Drop(0.1) for a tenth of each tensor."
        )
