"""The planner, which makes a plan from a profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Final

from jaxcomm import schedules
from jaxcomm.cp_sat import Log
from jaxcomm.errors import JaxcommError, ProfileError
from jaxcomm.plan import Plan
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.origin import Assumptions, Delay, PlanProvenance
from jaxcomm.plan.rails import Rails
from jaxcomm.plan.solved import SolvedCall, SolvedNetwork
from jaxcomm.plan.step import Step
from jaxcomm.plan.timed import timed_spec
from jaxcomm.plan.values import Chain, Entry, Hybrid, Matches, Rotation, Spec, StragglerSpec
from jaxcomm.planner import drops, groups, halves, lost_rails, rails, transport
from jaxcomm.planner.byte_ranges import Progress
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules import Setting, WithXla, choose, choose_executor, entries, solved, with_selectors
from jaxcomm.planner.schedules.timed_basis import basis
from jaxcomm.planner.step import Assignment, plan_step, relaxed_steps
from jaxcomm.profile import Profile, find_straggler
from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import TimedSchedules, TriedSchedule
from jaxcomm.program.program import MAX_RANKS
from jaxcomm.simulate import PORTS
from jaxcomm.simulate.between_hosts import timed_costs

LEAST_GAIN: Final = 0.02  # minimum required saving of a schedule that uses a delay, even if the link's fit is exact
MOST_GAIN: Final = 0.9  # upper limit of the required saving, however inexact the link's fit is


def plan(
    profile: Profile,
    *,
    time_limit: float = 10.0,
    seed: int = 0,
    min_gain: float | None = None,
    ports: int = PORTS,
    drop_bound: float | None = None,
    drop_budget: float | None = None,
    model: str = "",
    progress: Progress = lambda share: None,
    log: Log = None,
    model_bytes: int | None = None,
) -> Plan:
    """The plan with the least predicted time for the cluster that a profile describes.

    Each allreduce size gets the schedule with the least mean time over the profiled delays. A schedule that uses the
    late rank's delay must save at least `min_gain` of the time of the best schedule that uses no delay, so that the
    gain exceeds the model's errors. Otherwise the entry lists the schedule as refused. If the link's α is assumed and
    not measured, no schedule that uses a delay is considered. Reduce-scatters and all-gathers get schedules too, unless
    the direct schedule is best at every size. The gradient buckets of a step share one delay, so they are planned
    together with their boundaries (see `planner.step`). Equal arguments give byte-identical plans.

    Args:
      profile: the measurements.
      time_limit: approximate seconds for each of three searches: schedules for the step's buckets as they are, other
        bucket boundaries, and schedules for a topology. The limit counts work, so it is equal on every machine. Splits
        over rails need no limit: their search is exact and bounded (see `planner.rails.split`).
      seed: seed of the searches, from 0 to 2³¹ − 1.
      min_gain: minimum saving, as a share in [0, 1), for which the plan departs from a default choice, for example to a
        schedule that uses a delay, or to several rails. None: for rails, `rails.MIN_GAIN`; otherwise the residual of
        the link's fit, or the measurement error of timed schedules, but at least 2 %.
      ports: number of peers that a rank can exchange with at once at full speed; the direct schedule needs `ranks - 1`.
      drop_bound: the share of each gradient that may be lost; None: chosen by `planner.drops.decide`.
      drop_budget: the share of all gradients together that may be lost; None: the bound.
      model: the model architecture whose published drop bound is used; empty: the profile's architecture.
      progress: called with the finished share, from 0 to 1.
      log: receives the lines of the solver's log.
      model_bytes: size, in bytes, of the data that a group averages; None: the size of all gradient buckets or, if
        there are none, of the profile's collective.

    Returns:
      The plan; `collectives[i].alternatives` lists every schedule considered, and why it was not taken.

    Raises:
      ProfileError: there are more ranks or bucket sizes than a plan can hold, the bytes that groups average are
        unknown, or no drop policy fits.
      JaxcommError: OR-Tools is needed and not installed, or an argument is out of range.
    """
    _check(profile.ranks, time_limit=time_limit, seed=seed, min_gain=min_gain, ports=ports)
    digest = profile.hash
    profile, executed = choose_executor(profile)
    error = 0.0 if profile.timed_schedules else profile.link.residual  # timed schedules have their own error estimates
    least_gain = min(MOST_GAIN, max(LEAST_GAIN, error)) if min_gain is None else min_gain
    setting = _setting(profile, executed, ports, least_gain, min_gain is not None)
    setting = replace(setting, solved=solved(setting, time_limit, seed))
    both = _with_xla(setting, profile) if executed is None else None
    network, decision = profile.network, plan_step(profile, setting, time_limit=time_limit, seed=seed, log=log)
    by_xla = plan_step(profile, both.by_xla, time_limit=time_limit, seed=seed, log=log) if both else None
    stepped = both.by_xla if both and decision and by_xla and _saves(both, by_xla.step, decision.step) else setting
    if stepped is not setting:
        decision = by_xla
    split = rails.decide(profile, rails.MIN_GAIN if min_gain is None else min_gain)
    over = transport.decide(profile)
    profile = transport.with_resends(profile, over)
    policy = drops.decide(
        profile, bound=drop_bound, model=model, budget=drop_budget, time_limit=time_limit, seed=seed, log=log
    )
    divided = groups.decide(profile, model_bytes, seed)
    step = decision.step if decision else None
    if step:
        step = step.model_copy(update={"accepting": relaxed_steps(step, stepped, profile.packet_loss, policy, divided)})
    known = decision.known if decision else {}
    if not decision and profile.collective:
        known = {profile.collective.bytes: choose(setting, profile.collective.bytes)}
    own = known if stepped is setting else {nbytes: choose(setting, nbytes) for nbytes in known}
    found = with_selectors(setting, entries(setting, own, progress), own if decision else ())
    if both:
        found = both.entries(found, known if decision else {}, stepped is not setting)
    searches = [each for each in (decision.results if decision else ()) if each.status != "NOT_NEEDED"]
    return Plan(
        matches=Matches(ranks=profile.ranks),
        roles=dict(setting.late.roles),
        hosts=tuple(profile.hosts) or None,
        template=_rotation(setting, found),
        network=SolvedNetwork(topology=network, schedules=setting.solved) if network else None,
        collectives=found,
        halves=halves.decide(setting),
        assumptions=_assumptions(profile, ports, least_gain, setting, both, found),
        executors=executed,
        step=step,
        rails=split,
        lost_rails=lost_rails.decide(profile, setting, split, found),
        groups=divided,
        drops=policy,
        transport=over,
        provenance=_provenance(digest, [*setting.solved, *searches], split, seed),
    )


def _check(ranks: int, *, time_limit: float, seed: int, min_gain: float | None, ports: int) -> None:
    for name, value, fits, range_ in (
        ("ports", ports, 1 <= ports <= MAX_RANKS, f"from 1 to {MAX_RANKS}"),
        ("min_gain", min_gain, min_gain is None or 0 <= min_gain < 1, "a share, from 0 to below 1"),
        ("time_limit", time_limit, 0 < time_limit < math.inf, "a positive number of seconds"),
        ("seed", seed, 0 <= seed < 2**31, "from 0 to 2147483647"),
    ):
        if not fits:
            raise JaxcommError(f"{name} is {value}; it must be {range_}.\n  Cure: change it, or leave it out.")
    if ranks > MAX_RANKS:
        raise ProfileError(f"ranks is {ranks}; a plan is for at most {MAX_RANKS}.\n  Cure: plan per group.")


def _setting(
    profile: Profile, executed: Executors | None, ports: int, least_gain: float, has_given_gain: bool
) -> Setting:
    """The setting for all searches, before any schedules are solved."""
    late, link = LateRanks.of(profile), profile.link
    links = Cluster(link.alpha_s, link.beta_s_per_byte, profile.network, incast=profile.incast or 1.0)
    timed = _timed(profile)[0] if executed is None else None
    hosts = len({*profile.hosts} or {*(links.topology.hosts if links.topology else ())}) or 1
    return Setting(
        ranks=profile.ranks,
        links=links,
        ports=ports,
        min_gain=least_gain,
        late=late,
        template=schedules.template(profile.ranks) if late.roles or late.turns else None,
        executors=executed,
        timed=timed_costs(timed, profile.ranks, replace(links, nics=tuple(profile.nics)), hosts) if timed else None,
        has_given_gain=has_given_gain,
        hosts=hosts,
        tried=_tried(profile, late) if executed is None and (timed is None or timed.executor != "xla") else {},
    )


def _tried(profile: Profile, late: LateRanks) -> dict[Spec, list[TriedSchedule]]:
    """The trials of each schedule in earlier runs.

    Trials for another late rank are left out. Trials of schedules that depend on hosts are left out if the network is
    unknown.
    """
    found: dict[Spec, list[TriedSchedule]] = {}
    for each in profile.trials:
        spec = timed_spec(each.name)
        is_for_other = "late" in spec.model_fields_set and late.roles.get(ROLE) != each.late
        if not is_for_other and (profile.network or each.kind not in ("hierarchical", "halving_doubling_by_hosts")):
            found.setdefault(spec, []).append(each)
    return found


def _timed(profile: Profile) -> list[TimedSchedules | None]:
    """The schedules timed on the ranks' own executor, and those timed on XLA's collectives; either may be None."""
    found = list(profile.timed_schedules.by_executor().values()) if profile.timed_schedules else []
    return [*found, None, None][:2]


def _with_xla(setting: Setting, profile: Profile) -> WithXla | None:
    """The choice between our executor and XLA's collectives; None if fewer than two executors were timed."""
    timed = _timed(profile)[1]
    if timed is None:
        return None
    links = replace(setting.links, nics=tuple(profile.nics))
    return WithXla(setting, replace(setting, tried={}, timed=timed_costs(timed, profile.ranks, links, setting.hosts)))


def _saves(both: WithXla, by_xla: Step, own: Step) -> bool:
    """Whether XLA's collectives save enough of a step's time.

    The required share is the greatest of the shares that the step's calls must save.
    """
    least = max(both.least_gain(each.schedule, each.bytes, choose(both.own, each.bytes)) for each in by_xla.planned)
    return by_xla.seconds < (1 - least) * own.seconds


def _assumptions(
    profile: Profile, ports: int, least_gain: float, setting: Setting, both: WithXla | None, found: Sequence[Entry]
) -> Assumptions:
    link = profile.link
    return Assumptions(
        alpha_s=link.alpha_s,
        beta_s_per_byte=link.beta_s_per_byte,
        alpha_assumed=link.alpha_assumed,
        residual=link.residual,
        samples=len(link.samples),
        link_source=link.source,
        ports=ports,
        incast=profile.incast,
        min_gain=least_gain,
        delay=_delay(profile),
        timed=basis(setting, found),
        timed_by_xla=basis(both.by_xla, found) if both else None,
    )


def _provenance(
    digest: str, results: Sequence[SolvedCall | Assignment], split: Rails | None, seed: int
) -> PlanProvenance:
    """The origin of the plan: the solvers that ran, and the worst of their results."""
    worst = max(results, key=lambda result: result.gap, default=None)
    solvers = ["annealing"] * any(isinstance(each, SolvedCall) for each in results)
    solvers += ["cp_sat"] * any(isinstance(each, Assignment) for each in results)
    solvers += ["binary_search"] * (split is not None and len(split.members) > 1)
    return PlanProvenance(
        profile=digest,
        solver="+".join(solvers) or "none",
        status=worst.status if worst else "OPTIMAL" if solvers else "NOT_NEEDED",
        gap=significant(worst.gap) if worst else 0.0,
        seed=seed,
        versions={package: _version(package) for package in ("jaxcomm", "ortools")},
    )


def _delay(profile: Profile) -> Delay | None:
    """Statistics of the rank that is last most often, whether or not it counts as late."""
    if not profile.arrivals:
        return None
    last = find_straggler(profile)
    return Delay(**{name: getattr(last, name) for name in Delay.model_fields})


def _rotation(setting: Setting, found: Sequence[Entry]) -> Rotation | None:
    """The template, if an entry's schedule uses it."""
    if not setting.template or not uses_template(found):
        return None
    return Rotation.model_validate(setting.template.to_json())


def uses_template(entries: Iterable[Entry]) -> bool:
    """Whether a schedule of these entries is built from the template."""
    return any(isinstance(spec, StragglerSpec | Hybrid | Chain) for entry in entries for spec in entry.specs.values())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
