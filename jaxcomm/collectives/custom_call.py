"""Turns a request into a custom call of the core."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jaxcomm.collectives import choice
from jaxcomm.collectives.request import Operand, Request, extent
from jaxcomm.ffi.site_record import SiteGroup, SiteRecord


def is_in_place(request: Request) -> bool:
    """Whether each result reuses its operand's memory."""
    return request.kind == "all_reduce" and not request.keeps_operands


def unsharded(request: Request, operands: int) -> range:
    """The operands whose first dimension must not be sharded."""
    return range(1 if request.groups_by_operand else 0 if request.kind == "all_reduce" else operands)


def attributes(request: Request, operands: Sequence[Operand]) -> dict[str, str]:
    """The attributes of the custom call, which are equal on all processes.

    Args:
      request: the collective.
      operands: the operands of one rank.

    Raises:
      PlanError: the plan is for another number of ranks.
    """
    if request.groups_by_operand:
        # The ranks of a group are unknown here, so each group size gets the schedule for ranks on one host.
        one_host = [(0,) * size for size in range(2, request.sizes[0] + 1)]
        names = [_choose(request, hosts, operands[1:]).schedules[0] for hosts in one_host]
        groups, chosen = [SiteGroup(group, names) for group in request.groups], choice.Choice((), "groups")
    else:
        hosts_of = [tuple(request.hosts[each.process] if request.hosts else 0 for each in g) for g in request.groups]
        choices = {hosts: _choose(request, hosts, operands) for hosts in {*hosts_of} if len(hosts) > 1}
        rule = next((each.rule for each in choices.values() if each.rule), None)
        chosen = choices[max(hosts_of, key=len)]._replace(rule=rule)
        groups = [
            SiteGroup(group, choices[hosts].schedules if len(group) > 1 else ())
            for group, hosts in zip(request.groups, hosts_of, strict=True)
        ]
    record = SiteRecord(
        request.name,
        request.axes,
        request.kind,
        request.reduction,
        chosen.plan,
        request.groups_by_operand,
        groups,
        chosen.rule,
        request.drop,
        request.site,
        is_in_place(request),
    )
    return {"site": record.encode()}


def _choose(request: Request, hosts: Sequence[int], operands: Sequence[Operand]) -> choice.Choice:
    """The schedules of a group whose ranks are on these hosts."""
    plan = "" if request.plan == choice.AUTO and not _in_order(request) else request.plan
    call = choice.SizedCall(request.kind, len(hosts), *extent(operands), plan, request.call)
    if request.drop:
        return choice.lossy_messages(len(hosts))
    found = choice.choose_messages(call, hosts) if request.site else choice.choose(call)
    # With several groups between processes, a call has one schedule only: the ranks would not learn in time which of
    # several schedules the call runs.
    if request.site and len(request.groups) > 1:
        return found
    hosts_between = hosts if request.site else None
    return choice.with_others(found, call, hosts_between, request.tries)


def _in_order(request: Request) -> bool:
    """Whether the ranks are in ascending order of device numbers; plan="auto" has plans only for this order."""
    devices = [device.number for group in request.groups for device in group]
    return all(low < high for low, high in itertools.pairwise(devices))
