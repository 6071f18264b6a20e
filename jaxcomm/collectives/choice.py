"""Chooses the program or message lists of a call by its numbers of ranks and bytes, and compiles them.

Calls without a plan import no module that only plans need, such as pydantic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxcomm import ffi, schedules
from jaxcomm.log import say_once
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.program.program import compile
from jaxcomm.program.verifier import verify_program
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.default_schedules import FLAT_BYTES, default_schedule

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

PLANS: Final[dict[str, Plan]] = {}  # the plans that this process has loaded, by hash
AUTO: Final = "auto"  # replaces a plan's hash: calls between processes follow the plan that the run makes


NEVER: Final = -1e300  # value of `Rule.seconds` that every rank's lateness exceeds, so calls run the second schedule
ANY_RANK: Final = -1  # any rank may be late
NO_RANK: Final = -2  # lateness selects no schedule


class Rule(NamedTuple):
    """Selects one of several schedules for a call. The first schedule is for calls without a late rank.

    Attributes:
      rank: the rank that may be late. A call runs the second schedule if this rank entered the call that has ended last
        `seconds` or more after all other ranks, or if no call has ended yet. ANY_RANK: any rank may be late, a
        different one each time. A call runs schedule 1 + r if rank r has not entered the call `seconds` after all other
        ranks. NO_RANK: calls run the first schedule, at any lateness.
      seconds: see `rank`. NEVER where lateness does not matter.
      tries: whether the first calls compare the schedules. If the other schedules gain nothing, later calls run the
        first schedule.
      lost_rails: pairs of a rank and a rail's name, for calls between processes. While only this rank's host lacks this
        rail, calls run the pair's own schedule. These schedules come last in `Choice.schedules`, in the order of the
        pairs.
    """

    rank: int
    seconds: float
    tries: bool
    lost_rails: tuple[tuple[int, str], ...] = ()


class SizedCall(NamedTuple):
    """A call whose schedule is to be chosen.

    Attributes:
      kind: "all_reduce", "reduce_scatter" or "all_gather".
      ranks: ranks in each group.
      nbytes: bytes of one rank's operands.
      dtype: the operands' element type; None if the operands have several types.
      plan: the plan's hash, AUTO, or "" for no plan. A plan for another number of ranks is ignored.
      where: the call's name in error texts: "psum over 'data'".
    """

    kind: str
    ranks: int
    nbytes: int
    dtype: str | None
    plan: str
    where: str = ""

    @property
    def whole_bytes(self) -> int:
        """Bytes of the larger of a rank's operand and result."""
        return self.ranks * self.nbytes if self.kind == "all_gather" else self.nbytes


class Choice(NamedTuple):
    """The schedules of a call, as programs or message lists in the core, and their plan.

    Attributes:
      schedules: the schedules' names. If there is no rule, there is one name. If there is a rule, the first name is the
        schedule for calls without a late rank. A plan's schedules are named by their content. Schedules without a plan
        are "all_reduce/8", "reduce_scatter/8" and "all_gather/8", or between processes "all_reduce/flat/8" and the
        like; the core of every process makes these schedules itself.
      plan: the plan, for error texts and statistics; without a plan "direct" or "ring".
      rule: selects one of several schedules.
    """

    schedules: tuple[str, ...]
    plan: str
    rule: Rule | None = None


def choose(call: SizedCall) -> Choice:
    """The program that a call within a process runs.

    Only all-reduces follow plans: the direct programs of the other kinds already read and store each byte only once.
    """
    usual = f"{call.kind}/{call.ranks}"
    if call.kind != "all_reduce":
        return Choice((usual,), "direct")
    schedule, source = choose_schedule(call)
    return Choice((usual if source == "direct" else _compiled(schedule),), source)


def choose_messages(call: SizedCall, hosts: Sequence[int]) -> Choice:
    """The message lists that a call between processes runs; `hosts[r]` is the number of rank r's host."""
    kind, ranks, nbytes = call.kind, call.ranks, call.nbytes
    schedule, source = choose_schedule(call)
    is_planned_direct = source != "direct" and kind == "all_reduce" and schedule.kind == "direct"
    if is_planned_direct and default_schedule(nbytes, hosts) == "flat":  # "flat" takes one round, "direct" takes two
        return Choice((f"all_reduce/flat/{ranks}",), source)
    if source != "direct" and kind != "all_reduce" and schedule.kind == "direct":
        return Choice((f"{kind}/direct/{ranks}",), source)
    if source != "direct":
        return Choice((_compiled_messages(schedule),), source)
    way = default_schedule(call.whole_bytes, hosts)
    if kind != "all_reduce" and way == "flat":
        way = "direct"
    followed = AUTO if kind == "all_reduce" and call.plan == AUTO else "ring" if way == "ring" else "direct"
    return Choice((f"{kind}/{way}/{ranks}",), followed)


def lossy_messages(ranks: int) -> Choice:
    """The message lists of a sum that may lose packets: each chunk has one rank that sums it and sends the result."""
    return Choice((f"all_reduce/direct/{ranks}",), "direct")


def executor(call: SizedCall) -> str | None:
    """The executor that the call's plan names, which may be "lax", or None for the platform's default executor."""
    if call.plan in ("", AUTO):
        return None
    return PLANS[call.plan].executor_for(call.kind != "all_reduce", call.whole_bytes)


def choose_schedule(call: SizedCall) -> tuple[Schedule, str]:
    """The schedule that a call runs, and the first 8 digits of the plan's hash.

    If no plan has a schedule for the call, these are the direct schedule and "direct".
    """
    kind, ranks, nbytes, dtype, plan, where = call
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
        schedule = chosen.half_for("all_gather", call.whole_bytes, dtype)
    return (schedules.direct(ranks), "direct") if schedule is None else (schedule, plan[:8])


def with_others(choice: Choice, call: SizedCall, hosts: Sequence[int] | None, tries: bool) -> Choice:
    """Returns the choice, extended by all schedules among which a call on CPUs selects.

    If the plan selects by lateness, these are its schedules for calls without and with a late rank. Otherwise the
    choice has the plan's schedule; during a trial, also the default schedule; and between processes, also the plan's
    schedules for hosts that lack a rail.

    Args:
      choice: the call's choice so far.
      call: the call.
      hosts: as in `choose_messages`; None for a call within a process.
      tries: whether the first calls compare the plan's schedule with the default schedule.
    """
    kind, ranks, nbytes, dtype, plan, _ = call
    found = PLANS.get(plan)
    if found is None or found.ranks != ranks or (hosts is None and kind != "all_reduce"):
        return choice
    compiled = _compiled if hosts is None else _compiled_messages
    unplanned = call._replace(plan="")
    usual = Choice((f"{kind}/{ranks}",), "direct") if hosts is None else choose_messages(unplanned, hosts)
    selector = found.selector_for(nbytes, dtype) if kind == "all_reduce" else None
    if selector:
        early, *late = found.schedules_of(selector)
        rank = ANY_RANK if selector.by_turns else found.roles[selector.rank]
        rule = Rule(rank, selector.lateness_s, tries and early.kind == usual.plan)
        return Choice((compiled(early), *map(compiled, late)), choice.plan, rule)
    schedule, source = choose_schedule(call)
    if tries and source != "direct" and schedule.kind != usual.plan:
        choice = Choice((*usual.schedules, compiled(schedule)), choice.plan, Rule(1, NEVER, tries))
    lost_rails = found.lost_rails_for(nbytes, dtype) if kind == "all_reduce" and len({*(hosts or ())}) > 2 else ()
    if not lost_rails:
        return choice
    places = tuple((each.rank, each.rail) for each in lost_rails)
    rule = (choice.rule or Rule(NO_RANK, 0.0, False))._replace(lost_rails=places)
    return Choice((*choice.schedules, *(compiled(each.schedule_for(nbytes)) for each in lost_rails)), choice.plan, rule)


def leaves_to_lax(call: SizedCall) -> bool:
    """Whether the plan says that `jax.lax`'s own collective runs this call."""
    if call.plan in ("", AUTO) or PLANS[call.plan].ranks != call.ranks or executor(call) != "lax":
        return False
    return choose_schedule(call)[1] != "direct"


def uses_nccl(call: SizedCall) -> bool:
    """Whether the plan says that NCCL runs this all-reduce on GPUs."""
    plan = None if call.plan in ("", AUTO) else PLANS[call.plan]
    if plan is None or plan.ranks != call.ranks or plan.schedule_for(call.nbytes, call.dtype) is None:
        return False
    return plan.nccl_seconds(call.nbytes) is not None


def compile_plan(plan: str) -> None:
    """Registers all programs of a plan with the core, because an executable of another process may name any of them."""
    if plan not in ("", AUTO):
        for schedule in dict.fromkeys(schedule for *_, schedule in PLANS[plan].all_reduces()):
            _compiled(schedule)


def planned_messages(plan: Plan) -> list[tuple[int, str, tuple[bytes, ...]]]:
    """A plan's all-reduce schedules: for each, its minimum call size in bytes, its kind and all ranks' message lists.

    The lists are encoded. A direct schedule has no lists for calls of up to FLAT_BYTES, because the default schedule is
    better there.
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


@functools.cache  # unbounded: PLANS holds the schedules anyway, and a call with a rule needs all the rule's schedules
def _compiled(schedule: Schedule) -> str:
    program = compile(schedule)
    verify_program(program, schedule)
    return ffi.register_program(program)


@functools.cache  # unbounded, like `_compiled`
def _compiled_messages(schedule: Schedule) -> str:
    return ffi.register_messages(_encoded_messages(schedule))


def _encoded_messages(schedule: Schedule) -> tuple[bytes, ...]:
    lists = compile_messages(schedule)
    verify_messages(lists, schedule.collective)
    return tuple(each.encode() for each in lists)
