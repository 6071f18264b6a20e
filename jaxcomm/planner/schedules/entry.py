"""The plan's entry for a byte range: the choice, all alternatives, and the reasons against them."""

from __future__ import annotations

import numpy as np

from jaxcomm import simulate
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.values import (
    Alternative,
    Broadcast,
    Chain,
    DirectJoin,
    Entry,
    Nccl,
    Plain,
    Predicted,
    Spec,
    StragglerSpec,
    Verdict,
)
from jaxcomm.planner.late_ranks import ROLE
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import (
    call_lower_bound,
    host_specs,
    late_sets,
    late_specs,
    plain_schedule,
    too_many_ports,
)
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.simulate import Delays


def entry(setting: Setting, low: int, high: int | None, nbytes: int, choice: Spec) -> Entry:
    """The plan's entry for a byte range, with everything that was considered for calls of `nbytes`."""
    plain_specs: list[Spec] = [Plain(kind="ring"), Plain(kind="halving_doubling"), Plain(kind="direct")]
    plain_specs += host_specs(setting, nbytes)
    if setting.executors and setting.executors.nccl:
        nccl = Nccl.model_validate({"otherwise": plain_schedule(setting, nbytes).kind})
        plain_specs.append(choice if isinstance(choice, Nccl) else nccl)
    if setting.runs_by_xla:
        plain_specs.append(Plain(kind="lax"))
    times = {
        spec: setting.seconds(spec, nbytes)
        for spec in [*plain_specs, *late_specs(setting, nbytes), *late_sets(setting, nbytes), choice]
    }
    base = min(times[spec] for spec in plain_specs if not too_many_ports(setting, spec))

    def row(spec: Spec, seconds: float, verdict: Verdict) -> Alternative:
        gain = 1 - seconds / base if base > 0 else 0.0
        return Alternative(
            schedule=spec,
            seconds=significant(seconds),
            gain=significant(gain),
            verdict=verdict,
            executor=_executor(setting, spec),
        )

    verdicts = {spec: _verdict(setting, times, spec, choice, nbytes) for spec in times}
    rows = [
        row(spec, seconds, verdicts[spec])
        for spec, seconds in times.items()
        if not (isinstance(spec, DirectJoin) and verdicts[spec] == "slower")
    ]
    if setting.late.roles:
        rows += [row(spec, setting.cost(spec, nbytes)[1], "ideal_delay") for spec in _ideal_specs(setting, nbytes)]
    predicted = Predicted(
        reference_bytes=nbytes,
        seconds=significant(times[choice]),
        ring=significant(times[plain_specs[0]]),
        halving_doubling=significant(times[plain_specs[1]]),
        direct=significant(times[plain_specs[2]]),
        broadcast=significant(setting.seconds(Broadcast(late=ROLE), nbytes)),
        lower_bound=significant(call_lower_bound(setting, nbytes)),
        error=significant(_error(setting, choice, nbytes)),
    )
    return Entry(
        min_bytes=low,
        max_bytes=high,
        schedule=choice,
        predicted=predicted,
        alternatives=tuple(rows),
        executor=_executor(setting, choice),
    )


def _error(setting: Setting, choice: Spec, nbytes: int) -> float:
    """The possible error of the choice's time, as a share of the default schedule's time; 0 for a default schedule."""
    if setting.timed is None or choice in setting.defaults or choice.kind in ("nccl", "lax"):
        return 0.0
    default = min(setting.defaults, key=lambda spec: setting.seconds(spec, nbytes))
    than = None if default.kind == "lax" else setting.schedule(default)
    return setting.timed.margin(setting.schedule(choice), nbytes, than)


def _executor(setting: Setting, spec: Spec) -> ExecutorName | None:
    return "xla" if setting.runs_by_xla and spec.kind != "lax" else None


def _verdict(setting: Setting, times: dict[Spec, float], spec: Spec, choice: Spec, nbytes: int) -> Verdict:
    if spec == choice:
        return "chosen"
    if too_many_ports(setting, spec):
        return "too_many_ports"
    if times[spec] >= times[choice]:
        return "slower_here" if setting.trial(spec, nbytes) else "slower"
    if (kept := setting.trial(choice, nbytes)) and kept.is_kept:
        return "kept_here"
    if setting.gains(spec, choice, nbytes):
        return "calls_only" if isinstance(spec, Chain) else "window_taken"
    return "below_threshold" if setting.reaches(nbytes) else "not_timed"


def _ideal_specs(setting: Setting, nbytes: int) -> list[Spec]:
    """Straggler schedules with the paper's and the best chunk count, if the delay hides all work before the arrival.

    With a topology or timed schedules, returns the schedules for the real delay instead.
    """
    if setting.links.topology or setting.timed:
        return late_specs(setting, nbytes)
    links = setting.links
    always = simulate.tuned_straggler(setting.ranks, nbytes, Delays([np.inf]), links.alpha, links.beta)
    return [StragglerSpec(late=ROLE, chunks=chunks) for chunks in dict.fromkeys((setting.ranks - 1, always.chunks))]
