"""Chooses the program or message lists of a call by its ranks and bytes, and compiles them.

Calls without a plan need nothing of what plans need, pydantic above all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxcomm import ffi, schedules
from jaxcomm.collectives.default_schedules import FLAT_BYTES, default_schedule
from jaxcomm.log import say_once
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.program.program import compile
from jaxcomm.program.verifier import verify_program
from jaxcomm.schedules import Schedule

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

PLANS: Final[dict[str, Plan]] = {}  # that this process has loaded, by their hashes
AUTO: Final = "auto"  # in place of a plan's hash: calls between processes follow the plan of the run


NEVER: Final = -1e300  # seconds; no rank comes so little later than all others
ANY_RANK: Final = -1  # each may be late
NO_RANK: Final = -2  # lateness selects no schedule


class Rule(NamedTuple):
    """The rule by which a call runs one of several schedules, of which the first is for calls without a late rank.

    Attributes:
      rank: a rank that may be late, and is if it came `seconds` or more after all others to the call before. Calls then
        run the second schedule, and so do the first calls. ANY_RANK: each rank may be late, by turns. If all ranks but
        one have come to a call, and rank r has not within `seconds`, it runs the schedule 1 + r. NO_RANK: the first
        schedule, whoever is late.
      seconds: see `rank`. NEVER where lateness does not matter.
      tries: whether calls compare the schedules first, and run the first one for the others if they gain nothing.
      lost_rails: of calls between processes, ranks and names of rails. While the rank's host alone lacks the rail,
        calls run another schedule; the last schedules are those, in this order.
    """

    rank: int
    seconds: float
    tries: bool
    lost_rails: tuple[tuple[int, str], ...] = ()


class Choice(NamedTuple):
    """The schedules of a call, as programs or message lists in the core, and their plan.

    Attributes:
      schedules: their names: one, or, with a rule, that for calls without a late rank and those for late ranks. Those
        of plans are named by their content. Those of no plan are "all_reduce/8", "reduce_scatter/8" and "all_gather/8",
        or, between processes, "all_reduce/flat/8" and the like, which the core makes itself in every process.
      plan: for messages and statistics; without a plan "direct" or "ring".
      rule: of several schedules.
    """

    schedules: tuple[str, ...]
    plan: str
    rule: Rule | None = None


def choose(kind: str, ranks: int, nbytes: int, dtype: str | None, plan: str, where: str) -> Choice:
    """The program that a call within a process runs.

    Args:
      kind: "all_reduce", "reduce_scatter" or "all_gather"; only the first follows plans, as the direct programs of the
        others read and store each byte once, which no schedule can improve on.
      ranks: ranks in each group.
      nbytes: bytes of one rank's operands.
      dtype: their element type; None if they have several.
      plan: the plan's hash, or "". A plan for another number of ranks counts as none.
      where: the call, for messages: "psum over 'data'".
    """
    if kind != "all_reduce":
        return Choice((f"{kind}/{ranks}",), "direct")
    schedule, source = choose_schedule(kind, ranks, nbytes, dtype, plan, where)
    return Choice((f"{kind}/{ranks}" if source == "direct" else _compiled(schedule),), source)


def choose_messages(
    kind: str, ranks: int, nbytes: int, dtype: str | None, plan: str, where: str, hosts: Sequence[int]
) -> Choice:
    """The message lists that a call between processes runs.

    Args as in `choose`, but all kinds follow plans; `hosts` has a number of each rank's host.
    """
    schedule, source = choose_schedule(kind, ranks, nbytes, dtype, plan, where)
    is_planned_direct = source != "direct" and kind == "all_reduce" and schedule.kind == "direct"
    if is_planned_direct and default_schedule(nbytes, hosts) == "flat":  # one round in place of two
        return Choice((f"all_reduce/flat/{ranks}",), source)
    if source != "direct" and kind != "all_reduce" and schedule.kind == "direct":
        return Choice((f"{kind}/direct/{ranks}",), source)
    if source != "direct":
        return Choice((_compiled_messages(schedule),), source)
    whole = ranks * nbytes if kind == "all_gather" else nbytes
    way = default_schedule(whole, hosts)
    if kind != "all_reduce" and way == "flat":
        way = "direct"
    followed = AUTO if kind == "all_reduce" and plan == AUTO else "ring" if way == "ring" else "direct"
    return Choice((f"{kind}/{way}/{ranks}",), followed)


def lossy_messages(ranks: int) -> Choice:
    """The message lists of a sum of which the network may lose some: one rank adds what all then get."""
    return Choice((f"all_reduce/direct/{ranks}",), "direct")


def executor(kind: str, ranks: int, nbytes: int, plan: str) -> str | None:
    """The executor that a plan names for such calls, as described in `choose`, or "lax"; None: the platform's own."""
    whole = ranks * nbytes if kind == "all_gather" else nbytes
    return PLANS[plan].executor_for(kind != "all_reduce", whole) if plan not in ("", AUTO) else None


def choose_schedule(
    kind: str, ranks: int, nbytes: int, dtype: str | None, plan: str, where: str
) -> tuple[Schedule, str]:
    """The schedule that a call runs, and the plan it came from; "direct" for none.

    Args as in `choose`.
    """
    schedule, chosen = None, None if plan in ("", AUTO) else PLANS[plan]
    if chosen and chosen.ranks != ranks:
        say_once(
            f"{where}: the active plan {plan[:8]} is for {chosen.ranks} ranks; a call of {ranks} runs what "
            "it would without a plan.\n  Cure: name the axis that it is for, as in jaxcomm.use_plan({'data': plan})."
        )
    elif chosen and kind == "all_reduce":
        schedule = chosen.schedule_for(nbytes, dtype)
    elif chosen and kind == "reduce_scatter":
        schedule = chosen.half_for("reduce_scatter", nbytes, dtype)
    elif chosen:
        schedule = chosen.half_for("all_gather", ranks * nbytes, dtype)
    return (schedules.direct(ranks), "direct") if schedule is None else (schedule, plan[:8])


def with_others(
    choice: Choice,
    kind: str,
    ranks: int,
    nbytes: int,
    dtype: str | None,
    plan: str,
    where: str,
    hosts: Sequence[int] | None,
    tries: bool,
) -> Choice:
    """The choice with all schedules if calls on CPUs select one: a plan's by lateness, or, in a trial, the plan's and
    the default one; and between processes a plan's for hosts that lack a rail.

    Args as in `choose`; hosts: as in `choose_messages`, None for a call within a process.
    """
    found = PLANS.get(plan)
    if found is None or found.ranks != ranks or (hosts is None and kind != "all_reduce"):
        return choice
    compiled = _compiled if hosts is None else _compiled_messages
    call = kind, ranks, nbytes, dtype, "", where
    usual = Choice((f"{kind}/{ranks}",), "direct") if hosts is None else choose_messages(*call, hosts)
    selector = found.selector_for(nbytes, dtype) if kind == "all_reduce" else None
    if selector:
        early, *late = found.schedules_of(selector)
        rank = ANY_RANK if selector.by_turns else found.roles[selector.rank]
        rule = Rule(rank, selector.lateness_s, tries and early.kind == usual.plan)
        return Choice((compiled(early), *map(compiled, late)), choice.plan, rule)
    schedule, source = choose_schedule(kind, ranks, nbytes, dtype, plan, where)
    if tries and source != "direct" and schedule.kind != usual.plan:
        choice = Choice((*usual.schedules, compiled(schedule)), choice.plan, Rule(1, NEVER, tries))
    lost_rails = found.lost_rails_for(nbytes, dtype) if kind == "all_reduce" and len({*(hosts or ())}) > 2 else ()
    if not lost_rails:
        return choice
    places = tuple((each.rank, each.rail) for each in lost_rails)
    rule = (choice.rule or Rule(NO_RANK, 0.0, False))._replace(lost_rails=places)
    return Choice((*choice.schedules, *(compiled(each.schedule_for(nbytes)) for each in lost_rails)), choice.plan, rule)


def leaves_to_lax(kind: str, ranks: int, nbytes: int, dtype: str | None, plan: str) -> bool:
    """Whether a plan is for such calls, as described in `choose`, and has `jax.lax`'s own collective run them."""
    if plan in ("", AUTO) or PLANS[plan].ranks != ranks or executor(kind, ranks, nbytes, plan) != "lax":
        return False
    return choose_schedule(kind, ranks, nbytes, dtype, plan, "")[1] != "direct"


def uses_nccl(ranks: int, nbytes: int, dtype: str | None, plan: str) -> bool:
    """Whether a plan is for such calls, as described in `choose`, and has NCCL carry them on GPUs."""
    if plan in ("", AUTO) or PLANS[plan].ranks != ranks or PLANS[plan].schedule_for(nbytes, dtype) is None:
        return False
    return PLANS[plan].nccl_seconds(nbytes) is not None


def compile_plan(plan: str) -> None:
    """Hands all programs of a plan to the core, for executables whose choice among them was made in another process."""
    if plan not in ("", AUTO):
        for schedule in dict.fromkeys(schedule for *_, schedule in PLANS[plan].all_reduces()):
            _compiled(schedule)


def planned_messages(plan: Plan) -> list[tuple[int, str, tuple[bytes, ...]]]:
    """The message lists of a plan's all-reduces, encoded, of all ranks, each with the least bytes of its calls and its
    schedule's kind.

    None for few bytes where it has the direct schedule: calls without a plan run something better there.
    """
    found: list[tuple[int, str, tuple[bytes, ...]]] = []
    for entry, schedule in zip(plan.collectives, plan.schedules, strict=True):
        least = entry.min_bytes
        if schedule.kind == "direct" and least <= FLAT_BYTES:
            found.append((least, schedule.kind, ()))
            least = FLAT_BYTES + 1
        if entry.max_bytes is None or least <= entry.max_bytes:
            found.append((least, schedule.kind, _encoded_messages(schedule)))
    return found


@functools.cache  # the schedules are those of PLANS, and a call that selects one needs all of its own compiled
def _compiled(schedule: Schedule) -> str:
    program = compile(schedule)
    verify_program(program, schedule)
    return ffi.register_program(program)


@functools.cache  # as above
def _compiled_messages(schedule: Schedule) -> str:
    return ffi.register_messages(_encoded_messages(schedule))


def _encoded_messages(schedule: Schedule) -> tuple[bytes, ...]:
    lists = compile_messages(schedule)
    verify_messages(lists, schedule.collective)
    return tuple(each.encode() for each in lists)
