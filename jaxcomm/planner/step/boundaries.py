"""The step as one decision: its buckets, their schedules and times, and a lower bound on the step's time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.cp_sat import Log
from jaxcomm.errors import ProfileError
from jaxcomm.plan.step import MAX_GRADIENTS, Gradient, Planned, Span, Step
from jaxcomm.plan.values import Chain, Spec
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import late_sets, late_specs, plain, tuned_spec
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.step.bound import lower_bound
from jaxcomm.planner.step.bucket_solver import Assignment, assign
from jaxcomm.planner.step.jobs import Atoms, Jobs, Option, Packing
from jaxcomm.profile import Bucket, Profile
from jaxcomm.simulate import tune

OPTIONS: Final = 24  # number of straggler schedules considered for a bucket of the profile
FEW: Final = 8  # number of straggler schedules considered for a bucket that may join others
LARGE: Final = 128  # number of bucket sizes that may use the delay: those with the most bytes in total
MAX_SIZES: Final = 1000


class Decision(NamedTuple):
    """The plan's step, the schedule for every size of bucket, and the solver's results.

    `known` has the sizes of the planned buckets and of the profile's buckets, because a training run may keep the
    latter.
    """

    step: Step
    known: dict[int, Spec]
    results: list[Assignment]


def plan_step(profile: Profile, setting: Setting, *, time_limit: float, seed: int, log: Log) -> Decision | None:
    """The boundaries and schedules with which the step's last sum is ready earliest; None without buckets.

    The profile's buckets stay, unless other buckets save `min_gain` of the step's time.

    Args:
      profile: its buckets are the gradients. A planned bucket has one gradient, or several that become ready one after
        the other.
      setting: the plan's setting.
      time_limit: approximate seconds for the schedules of the profile's buckets, and again for other boundaries.
      seed: seed of the solver.
      log: receives the lines of the solver's log.

    Raises:
      ProfileError: more buckets or bucket sizes than a plan can hold.
      JaxcommError: OR-Tools is needed and not installed.
    """
    if not profile.buckets:
        return None
    gradients = sorted(profile.buckets, key=lambda bucket: bucket.ready_s)
    _check_size(gradients)
    atoms, few = Atoms.all(gradients), Atoms.few(gradients)
    stages = setting.late.stages
    jobs = _jobs(setting, atoms, 1, OPTIONS)
    best = kept = assign(jobs, stages, time_limit=time_limit, seed=seed, log=log)
    specs = _specs(jobs, kept.packing)
    results = [kept]
    if len(few.ready) > 1:
        packed = _jobs(setting, few, len(few.ready), FEW)
        found = assign(packed, stages, time_limit=time_limit, seed=seed, log=log)
        results.append(found)
        if found.seconds < (1 - setting.min_gain) * kept.seconds:
            jobs, best = packed, found
            specs |= _specs(packed, found.packing)
    asis = _jobs(setting, atoms, 1, 0)
    usual = [significant(float(seconds)) for seconds in np.median(stages, axis=1)]
    bound = lower_bound(setting, gradients)
    step = Step(
        buckets=len(gradients),
        bytes=sum(gradient.bytes for gradient in gradients),
        plain_seconds=significant(asis.seconds(stages, asis.single)),
        seconds=significant(best.seconds),
        scheduled_seconds=significant(kept.seconds),
        lower_bound_seconds=significant(best.seconds if math.isclose(bound, best.seconds) else bound),
        status=best.status,
        gap=significant(best.gap),
        delay_s=usual[-1],
        gradients=tuple(Gradient(name=each.name, bytes=each.bytes, ready_s=each.ready_s) for each in gradients),
        planned=_planned(jobs, best.packing, usual),
    )
    return Decision(step, specs, results)


def _check_size(gradients: Sequence[Bucket]) -> None:
    sizes = len({gradient.bytes for gradient in gradients})
    for count, kind, most in ((sizes, "different sizes", MAX_SIZES), (len(gradients), "entries", MAX_GRADIENTS)):
        if count > most:
            raise ProfileError(
                f"buckets has {count} {kind}; a plan has room for {most}.\n"
                "  Cure: gather small gradients into buckets of some 25 MB."
            )


def _jobs(setting: Setting, atoms: Atoms, longest: int, count: int) -> Jobs:
    """Buckets of up to `longest` atoms, each with about `count` schedules that use the delay (0: none)."""
    runs = atoms.runs(longest)
    total = Counter(run.bytes for run in runs)
    large = sorted(total, key=lambda nbytes: nbytes * total[nbytes])[-LARGE:] if count else []
    options = {nbytes: _options(setting, nbytes, count if nbytes in large else 0) for nbytes in sorted(total)}
    return Jobs(atoms.ready, runs, options, setting.min_gain)


def _options(setting: Setting, nbytes: int, count: int) -> list[Option]:
    """The schedules that buckets of a size can run.

    The first is the fastest schedule that uses no delay. If `count` is above 0, schedules that use the delays of late
    ranks follow. If no schedules were timed and all links have the same rate, these include up to `count` schedules for
    one late rank, each of which does more work before the arrival than the previous one.
    """
    specs: list[Spec] = [plain(setting, nbytes)]
    if count:
        rivals = [*late_specs(setting, nbytes), *late_sets(setting, nbytes)]
        specs += [spec for spec in rivals if not isinstance(spec, Chain)]
    if setting.timed:
        specs = [specs[0], *(spec for spec in specs[1:] if setting.gains(spec, specs[0], nbytes))]
    elif count and setting.late.roles and not setting.links.topology:
        longest, links = float(setting.late.delays.seconds[-1]), setting.links
        members = tune.covering(setting.ranks, nbytes, longest, links.alpha, links.beta, count)
        specs += map(tuned_spec, members)
    costs = {spec: setting.cost(spec, nbytes) for spec in dict.fromkeys(specs)}
    return [Option(spec, before, after, setting.late.stage(spec)) for spec, (before, after) in costs.items()]


def _specs(jobs: Jobs, packing: Packing) -> dict[int, Spec]:
    return {run.bytes: jobs.options[run.bytes][packing.choice[run.bytes]].spec for run in packing.runs}


def _planned(jobs: Jobs, packing: Packing, stages: Sequence[float]) -> tuple[Planned, ...]:
    """The buckets, with their times in a step with these `stages`.

    The network is assumed to run jobs in the order in which they become ready. Every order ends at the same time (see
    `queue`).
    """
    delay = stages[-1]
    options = [jobs.options[run.bytes][packing.choice[run.bytes]] for run in packing.runs]
    ready = [float(jobs.ready[run.end]) for run in packing.runs]
    waiting = [(at + stages[option.stage], 0, i) for i, (at, option) in enumerate(zip(ready, options, strict=True))]
    waiting += [(at + delay, 1, i) for i, at in enumerate(ready)]
    spans: dict[tuple[int, int], Span] = {}
    now = 0.0
    for at, part, i in sorted(waiting):
        seconds = options[i].after if part else options[i].before
        if seconds:
            start = max(now, at)
            now = start + seconds
            spans[i, part] = Span(start_s=significant(start), end_s=significant(now))
    return tuple(
        Planned(
            gradients=run.last - run.first + 1,
            bytes=run.bytes,
            schedule=option.spec,
            before=spans.get((i, 0)),
            after=spans.get((i, 1)) or Span(start_s=significant(ready[i] + delay), end_s=significant(ready[i] + delay)),
        )
        for i, (run, option) in enumerate(zip(packing.runs, options, strict=True))
    )
