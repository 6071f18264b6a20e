"""Matches the rails of a plan with the rails of a job: by name, or by rate if the names differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from jaxcomm.distributed.rails.rail_ends import RailEnd, in_words
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRails, SharesFrom
from jaxcomm.log import say_once

_APART: Final = 1.25  # rates identify rails if each rate is at least this factor times the next lower rate


def shares_of(planned: PlanRails | None, names: Sequence[str], ends: Iterable[RailEnd]) -> Sequence[SharesFrom]:
    """Returns the plan's shares, by the names of the job's rails; () without a plan or with fewer than two rails.

    If the names differ, the rails are matched in the order of their rates. Then all rails of the plan must use one
    transport, and any two rates must differ by 25 % or more. The plan must have every rail of the job, because a rail
    without a share would carry nothing.

    Args:
      planned: the plan's rails.
      names: the job's rails.
      ends: the ends of these rails in all processes.

    Raises:
      JaxcommError: the names differ, and either the numbers of rails differ or the rates do not identify the rails.
    """
    if planned is None or len(names) < 2:
        return ()
    if {rail.name for rail in planned.rails} == {*names}:
        return planned.shares
    rates = _rates(names, ends)
    by_rate = {rail.name: rail.bytes_per_s for rail in planned.rails}
    transports = {rail.transport for rail in planned.rails}
    if len(by_rate) != len(names) or len(transports) > 1 or not (_differ(rates) and _differ(by_rate)):
        raise JaxcommError(
            f"the plan's rails are {in_words(by_rate)}; this job's are {in_words(names)}, "
            f"{'and their rates do not say' if len(by_rate) == len(names) else 'too few or too many to say'} "
            "which is which.\n"
            f"  Cure: {_cure(by_rate)}`jaxcomm profile` and `jaxcomm plan` in this job."
        )
    fastest_first = zip(_fastest_first(by_rate), _fastest_first(rates), strict=True)
    called = dict(fastest_first)
    matched = ", ".join(f"{in_words([here])} has the share of {in_words([there])}" for there, here in called.items())
    say_once(f"the plan's rails have other names than this job's; by their rates {matched}.")
    return [SharesFrom(low, {called[name]: units for name, units in each.items()}) for low, each in planned.shares]


def _rates(names: Iterable[str], ends: Iterable[RailEnd]) -> dict[str, float]:
    """Returns the rate of each rail's slowest end; 0 if the rate of an end is unknown."""
    every = [*ends]
    return {name: min((end.rate for end in every if end.name == name), default=0) for name in names}


def _differ(rates: Mapping[str, float]) -> bool:
    """Returns whether all rates are known and every two rates differ by the factor `_APART` or more."""
    ascending = sorted(rates.values())
    return ascending[0] > 0 and all(high >= _APART * low for low, high in itertools.pairwise(ascending))


def _fastest_first(rates: Mapping[str, float]) -> list[str]:
    return sorted(rates, key=lambda name: -rates[name])


def _cure(names: Iterable[str]) -> str:
    listed = [*names]
    return f"JAXCOMM_RAILS={','.join(listed)} if the interfaces have these names; else " if all(listed) else ""
