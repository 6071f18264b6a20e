"""Who runs what: the active plan, the deadline, and the program that a call of so many ranks and bytes gets.

Calls without a plan need nothing of what plans need, pydantic above all.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import jax

import jaxcomm.plan
from jaxcomm import ffi, schedules
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.plan.program import compile, compile_all_gather, compile_direct, compile_reduce_scatter
from jaxcomm.plan.verifier import verify_program
from jaxcomm.schedules import Schedule

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

PlanLike: TypeAlias = "str | os.PathLike[str] | Plan | None"

_DEADLINE: Final = "JAXCOMM_DEADLINE_S"

# The hash of the active plan, or "". JAX compiles anew where it changes.
_active = jax.make_user_context("")
_plans: dict[str, Plan] = {}


def init(
    mesh: jax.sharding.Mesh | None = None,
    *,
    plan: PlanLike = None,
    rails: object = None,
    deadline_s: float | None = None,
) -> None:
    """Prepares this process. Optional: without it, the first collective does so with the defaults.

    Args:
      mesh: if given, `plan` must fit one of its axes, or several together.
      plan: what all-reduces follow from now on, as by `use_plan(plan)`; None leaves the active plan.
      rails: None; this build has one rail.
      deadline_s: seconds that a collective waits for its last rank before it fails; None leaves it: at first it is the
        environment's JAXCOMM_DEADLINE_S, or 60.

    Raises:
      PlanError: the plan cannot be read, or fits no axis of the mesh.
      JaxcommError: rails were given, or a deadline that is no positive number. Nothing has been changed then.
    """
    if rails is not None:
        raise JaxcommError(f"rails is {rails!r}, but this build has one rail.\n  Cure: leave `rails` out.")
    deadline = None if deadline_s is None else _seconds("deadline_s", deadline_s)
    digest = plan_hash(plan)
    if mesh is not None and digest:
        _check_mesh(_plans[digest], mesh)
    start()
    if deadline is not None:
        ffi.set_deadline(deadline)
    if plan is not None:
        _active.set_global(digest)


class use_plan:
    """Sets the plan that all-reduces follow: from now on, or, in a `with` statement, inside it.

    It counts where a step is traced, and a jitted step is traced again for each plan. Inside a `with` statement it
    counts for this thread only.

    Args:
      plan: path of a plan file, or a `jaxcomm.plan.Plan`; None for the direct schedule.

    Raises:
      PlanError: the file cannot be read, or its plan does not compute the sum.
    """

    def __init__(self, plan: PlanLike) -> None:
        self._digest = "" if plan is None else plan_hash(plan)
        self._before = _active.get_global()
        _active.set_global(self._digest)

    def __enter__(self) -> Self:
        _active.set_global(self._before)
        self._scope = _active(self._digest)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)


def plan_hash(plan: PlanLike) -> str:
    """The name by which `choose` will find `plan`; that of the active plan for None, "" if there is none.

    Raises:
      PlanError: the file cannot be read, or its plan does not compute the sum.
    """
    if plan is None:
        digest: str = _active.value
        return digest
    if isinstance(plan, str | os.PathLike):
        plan = jaxcomm.plan.load(plan)  # which proves it
    elif plan.hash not in _plans:
        from jaxcomm.plan.proof import check_brought

        check_brought(plan)
    _plans[plan.hash] = plan
    return plan.hash


def active_plan(plan: PlanLike) -> Plan | None:
    """The plan itself, or the active one for None; None if there is none.

    Raises:
      PlanError: as `plan_hash`.
    """
    return _plans.get(plan_hash(plan))


@functools.cache
def start() -> None:
    """Loads the core and sets the environment's deadline, once."""
    ffi.register()
    if _DEADLINE in os.environ:
        ffi.set_deadline(_seconds(_DEADLINE, os.environ[_DEADLINE]))


class Choice(NamedTuple):
    """The program for a call, by its name in the core, and the plan it came from, for messages."""

    program: str
    plan: str


def choose(kind: str, ranks: int, nbytes: int, dtype: str | None, plan: str, where: str) -> Choice:
    """The program that a call runs.

    Args:
      kind: "all_reduce", "reduce_scatter" or "all_gather"; only the first follows plans.
      ranks: ranks in each group.
      nbytes: bytes of one rank's operands.
      dtype: their element type; None if they have several.
      plan: what `plan_hash` returned.
      where: the call, for messages: "psum over 'data'".

    Raises:
      PlanError: the plan is for another number of ranks.
    """
    if kind != "all_reduce":
        return Choice(_fan(compile_reduce_scatter if kind == "reduce_scatter" else compile_all_gather, ranks), "direct")
    schedule, source = choose_schedule(ranks, nbytes, dtype, plan, where)
    return Choice(_compiled(schedule), source)


def choose_schedule(ranks: int, nbytes: int, dtype: str | None, plan: str, where: str) -> tuple[Schedule, str]:
    """The schedule that an all-reduce runs, and the plan it came from, for messages.

    Args and errors as in `choose`.
    """
    if not plan:
        return schedules.direct(ranks), "direct"
    chosen = _plans[plan]
    if chosen.ranks != ranks:
        raise PlanError(
            f"{where}: plan {plan[:8]} is for {chosen.ranks} ranks; this call has {ranks}.\n"
            f"  Cure: give the call a plan for {ranks} ranks (`plan=`), or make it under `with jaxcomm.use_plan(None)`."
        )
    schedule = chosen.schedule_for(nbytes, dtype)
    return (schedules.direct(ranks), "direct") if schedule is None else (schedule, plan[:8])


def leaves_to_nccl(ranks: int, nbytes: int, dtype: str | None, plan: str) -> bool:
    """Whether a plan is for such calls, as described in `choose`, and has NCCL carry them on GPUs."""
    if not plan or _plans[plan].ranks != ranks or _plans[plan].schedule_for(nbytes, dtype) is None:
        return False
    return _plans[plan].nccl_seconds(nbytes) is not None


@functools.cache
def programs_to(ranks: int) -> tuple[str, ...]:
    """The direct schedule's programs for 2, 3, … and so many ranks: groups that change may come to have any size."""
    return tuple(ffi.register_program(compile_direct(size)) for size in range(2, ranks + 1))


def compile_plan(plan: str) -> None:
    """Hands all programs of a plan to the core, for executables whose choice among them was made in another process."""
    if plan:
        for schedule in _plans[plan].schedules:
            _compiled(schedule)


@functools.cache
def _fan(compiler: Callable[[int], bytes], ranks: int) -> str:
    return ffi.register_program(compiler(ranks))


@functools.lru_cache(maxsize=256)
def _compiled(schedule: Schedule) -> str:
    program = compile(schedule)
    verify_program(program, schedule)
    return ffi.register_program(program)


def _seconds(name: str, value: float | str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise JaxcommError(f"{name} is {value!r}; it must be a positive number of seconds.")
    return seconds


def _check_mesh(plan: Plan, mesh: jax.sharding.Mesh) -> None:
    sizes = mesh.shape
    together = (axes for count in range(1, len(sizes) + 1) for axes in itertools.combinations(sizes, count))
    if not any(math.prod(sizes[axis] for axis in axes) == plan.ranks for axes in together):
        axes = ", ".join(f"'{axis}' {size}" for axis, size in sizes.items())
        raise PlanError(
            f"plan {plan.hash[:8]} is for {plan.ranks} ranks, but the mesh's axes have {axes}.\n"
            f"  Cure: plan from a profile of that many ranks, or make a mesh with an axis of {plan.ranks}."
        )
