"""The halves of an all-reduce in a plan: reduce-scatters, and all-gathers, which run the same schedules reversed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.values import Count, HalvingDoubling, Hierarchical, Plain, Seconds
from jaxcomm.profile.cluster import Topology

HalfSpec = Annotated[Plain | HalvingDoubling | Hierarchical, Field(discriminator="kind")]


class HalfAlternative(Value):
    """A schedule that was considered for a reduce-scatter and an all-gather, and its predicted seconds."""

    schedule: HalfSpec
    seconds: Seconds


class HalfEntry(Value):
    """The schedule of reduce-scatters of `min_bytes` to `max_bytes` bytes, both included. All-gathers run it reversed.

    Bytes count the whole buffer, which is a reduce-scatter's operand and an all-gather's result. A `max_bytes` of null
    means no limit. If all ranks arrive together, a call of `reference_bytes` bytes is predicted to take `seconds`, and
    no schedule can take less than `lower_bound`. `executor` is as in `Entry`.
    """

    min_bytes: Count
    max_bytes: Count | None
    schedule: HalfSpec
    reference_bytes: Count
    seconds: Seconds
    lower_bound: Seconds
    alternatives: Annotated[tuple[HalfAlternative, ...], Field(fail_fast=True, max_length=64)] = ()
    executor: ExecutorName | None = None


def check_half(where: str, spec: HalfSpec, ranks: int, topology: Topology | None) -> None:
    """Raises ValueError if the spec names no schedule for these ranks and this network.

    Args:
      where: the spec's place in the file.
      spec: the spec.
      ranks: the plan's ranks.
      topology: the plan's network.
    """
    if not isinstance(spec, Plain) and not topology:
        raise ValueError(f"network is null, but {where} is made for the hosts of its topology")
    if spec.kind.startswith("halving_doubling") and ranks & (ranks - 1):
        raise ValueError(f"{where}.kind is {spec.kind}, but {ranks} ranks are not a power of two")
    if isinstance(spec, Hierarchical) and spec != Hierarchical(chunks=ranks):
        raise ValueError(
            f"{where} has chunks {spec.chunks}, late {list(spec.late)}, within {spec.within} and across {spec.across}; "
            f"a reduce-scatter has {ranks} chunks, one per rank, and uses no delay"
        )
