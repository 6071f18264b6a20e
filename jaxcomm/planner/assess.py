"""What one call of a given size could run, what each schedule would take, and which one to choose."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxcomm import schedules, simulate
from jaxcomm.plan import build
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.values import (
    Alternative,
    Broadcast,
    Chain,
    Entry,
    Hybrid,
    Nccl,
    Plain,
    Predicted,
    Solved,
    Spec,
    Straggler,
    Stragglers,
    Transfers,
    Verdict,
)
from jaxcomm.schedules import Schedule, Template
from jaxcomm.simulate import Delays, Tuned
from jaxcomm.topology import Topology

ROLE = "straggler"


@dataclass(frozen=True)
class Setting:
    """What a plan is made for.

    `roles` binds "straggler" if it is known who is late, and is empty otherwise: then no schedule may count on a delay.
    `template` is needed with it. `solved` are straggler schedules for the links of `topology`. `late` are the roles
    of several late ranks in the order in which they come, and `releases[i][step]` when all but the i-th of them and
    those after it are there, in seconds after the last one's arrival; both empty if at most one is late. `executors`
    holds the times of NCCL's own allreduce, if it was timed. For the rest see `jaxcomm.planner.plan`.
    """

    ranks: int
    alpha: float
    beta: float
    delays: Delays
    roles: dict[str, int]
    template: Template | None
    min_gain: float
    ports: int
    topology: Topology | None = None
    solved: tuple[Solved, ...] = ()
    late: tuple[str, ...] = ()
    releases: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    executors: Executors | None = None

    @property
    def window(self) -> Delays:
        """How long the ranks that are not late wait for the last one."""
        return Delays(-self.releases[0]) if self.late else self.delays

    @property
    def stages(self) -> NDArray[np.float64]:
        """When more and more late ranks are there, in seconds after those that are not late: first none of them, last
        all. One column per step, by when all are there."""
        if not self.late:
            return np.array([np.zeros_like(self.delays.seconds), self.delays.seconds])
        after: NDArray[np.float64] = self.releases - self.releases[0]
        return after[:, after[-1].argsort(kind="stable")]

    def stage(self, spec: Spec) -> int:
        """At which of the stages the precondition of a schedule for one late rank, or for `Stragglers`, can start."""
        return max(1, len(self.late)) - (len(spec.late) if isinstance(spec, Stragglers) else 1)

    def cost(self, spec: Spec, nbytes: int) -> tuple[float, float]:
        """Seconds before and after the late rank's arrival; somebody's, where nobody is known to be late."""
        if isinstance(spec, Nccl):
            return 0.0, self.nccl_seconds(nbytes)
        schedule = build(spec, self.ranks, self.roles or {ROLE: 0}, self.template, self.solved)
        return simulate.phases(schedule, nbytes, self.alpha, self.beta, self.topology)

    def nccl_seconds(self, nbytes: int) -> float:
        """Seconds of NCCL's own allreduce; infinite if it was not timed."""
        return self.executors.nccl_seconds(nbytes) if self.executors and self.executors.nccl else math.inf

    def seconds(self, spec: Spec, nbytes: int) -> float:
        """Mean seconds from the last late rank's arrival on."""
        if isinstance(spec, Stragglers | Chain):
            call = nbytes, self.alpha, self.beta
            if topology := self.topology:
                parts = build(spec, self.ranks, self.roles, self.template).phases
                times = [topology.seconds(part, *call) for part in parts]
            else:
                parts = _schedule(spec.kind, self.ranks, len(spec.late), spec.chunks).phases
                times = [part.seconds(*call) for part in parts]
            needed = range(-1 - len(spec.late), 0) if isinstance(spec, Chain) else (-1 - len(spec.late), -1)
            return simulate.staggered(times, self.releases[list(needed)])
        before, after = self.cost(spec, nbytes)
        return float(self.delays.exposed(before)) + after


def choose(setting: Setting, nbytes: int) -> Spec:
    """The fastest schedule for calls of this size.

    One that uses the delay must gain `min_gain` to be taken, and one for several late ranks as much over the best then.
    """
    choice: Spec = plain(setting, nbytes)
    for rivals in (late_specs(setting, nbytes), late_sets(setting, nbytes)):
        if rivals:
            rival = min(rivals, key=lambda spec: setting.seconds(spec, nbytes))
            pays = setting.seconds(rival, nbytes) < (1 - setting.min_gain) * setting.seconds(choice, nbytes)
            choice = rival if pays else choice
    return choice


def plain(setting: Setting, nbytes: int) -> Plain | Nccl:
    """The fastest of what cannot use a delay: a schedule, or NCCL's own allreduce."""
    best = plain_schedule(setting, nbytes)
    if setting.nccl_seconds(nbytes) < setting.seconds(best, nbytes):
        return Nccl(otherwise=best.kind)
    return best


def plain_schedule(setting: Setting, nbytes: int) -> Plain:
    """The fastest schedule that cannot use a delay."""
    specs = [Plain(kind="direct"), Plain(kind="ring"), Plain(kind="halving_doubling")]
    allowed = [spec for spec in specs if not _too_many_ports(setting, spec)]
    return min(allowed, key=lambda spec: setting.seconds(spec, nbytes))


def lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that no schedule of ours can beat, nor NCCL: its switches may add, which no rank's port bounds."""
    call = setting.ranks, nbytes, setting.window, setting.alpha, setting.beta, setting.ports, setting.topology
    return min(simulate.lower_bound(*call), setting.nccl_seconds(nbytes))


def late_specs(setting: Setting, nbytes: int) -> list[Spec]:
    """The best of every kind that uses the delay of the late rank; empty if nobody is known to be late.

    Chunks and coverage are tuned for links that are alike; where they differ, the solver's schedules take that place.
    """
    if not setting.roles:
        return []
    if setting.topology:
        solved = [
            Transfers(late=ROLE, chunks=len(found.owners), index=index) for index, found in enumerate(setting.solved)
        ]
        return [Broadcast(late=ROLE), Straggler(late=ROLE, chunks=setting.ranks - 1), *solved]
    call = setting.ranks, nbytes, setting.delays, setting.alpha, setting.beta
    members = simulate.straggler(*call), simulate.hybrid(*call)
    return [Broadcast(late=ROLE), *(tuned_spec(member) for member in members if member)]


def late_sets(setting: Setting, nbytes: int) -> list[Spec]:
    """The best of every kind for the last two late ranks, the last three, ...; empty if at most one is late.

    Chunk counts are 1, 2, 4, ... times those with which every rank has as much to do, and where links
    differ, so that every transfer must be timed, at most 16 times those.
    """
    specs: list[Spec] = []
    limit = simulate.tune.max_chunks(setting.ranks, nbytes)
    for count in range(2, len(setting.late) + 1):
        late = setting.late[-count:]
        for kind, period in ((Stragglers, setting.ranks), (Chain, setting.ranks - 1)):
            times = max(1, min(limit // period, 16 if setting.topology else limit)).bit_length()
            members: list[Spec] = [kind(late=late, chunks=period << exponent) for exponent in range(times)]
            specs.append(min(members, key=lambda spec: setting.seconds(spec, nbytes)))
    return specs


@lru_cache(maxsize=4096)
def _schedule(kind: str, ranks: int, late: int, chunks: int) -> Schedule:
    """The schedule for these numbers; which ranks are late changes nothing in its phases' rounds and volumes."""
    make = schedules.stragglers if kind == "stragglers" else schedules.chain
    return make(ranks, range(late), chunks)


def tuned_spec(member: Tuned) -> Spec:
    """The spec of a tuned member of the straggler family."""
    if member.covered == member.chunks:
        return Straggler(late=ROLE, chunks=member.chunks)
    return Hybrid(late=ROLE, chunks=member.chunks, covered=member.covered)


def entry(setting: Setting, low: int, high: int | None, nbytes: int, choice: Spec) -> Entry:
    """The plan's entry for a byte range, with everything that was considered for calls of `nbytes`."""
    plain_specs: list[Spec] = [Plain(kind="ring"), Plain(kind="halving_doubling"), Plain(kind="direct")]
    if setting.executors and setting.executors.nccl:
        nccl = Nccl(otherwise=plain_schedule(setting, nbytes).kind)
        plain_specs.append(choice if isinstance(choice, Nccl) else nccl)
    times = {
        spec: setting.seconds(spec, nbytes)
        for spec in [*plain_specs, *late_specs(setting, nbytes), *late_sets(setting, nbytes), choice]
    }
    base = min(times[spec] for spec in plain_specs if not _too_many_ports(setting, spec))

    def row(spec: Spec, seconds: float, verdict: Verdict) -> Alternative:
        gain = 1 - seconds / base if base > 0 else 0.0
        return Alternative(schedule=spec, seconds=figures(seconds), gain=figures(gain), verdict=verdict)

    rows = [row(spec, seconds, _verdict(setting, times, spec, choice)) for spec, seconds in times.items()]
    if setting.roles:
        rows += [row(spec, setting.cost(spec, nbytes)[1], "ideal_delay") for spec in _ideal_specs(setting, nbytes)]
    predicted = Predicted(
        reference_bytes=nbytes,
        seconds=figures(times[choice]),
        ring=figures(times[plain_specs[0]]),
        halving_doubling=figures(times[plain_specs[1]]),
        direct=figures(times[plain_specs[2]]),
        broadcast=figures(setting.seconds(Broadcast(late=ROLE), nbytes)),
        lower_bound=figures(lower_bound(setting, nbytes)),
    )
    return Entry(min_bytes=low, max_bytes=high, schedule=choice, predicted=predicted, alternatives=tuple(rows))


def figures(value: float) -> float:
    """Nine significant figures: more would differ between machines that add in another order."""
    return float(f"{value:.9g}")


def _verdict(setting: Setting, times: dict[Spec, float], spec: Spec, choice: Spec) -> Verdict:
    if spec == choice:
        return "chosen"
    if _too_many_ports(setting, spec):
        return "too_many_ports"
    if times[spec] >= times[choice]:
        return "slower"
    worthwhile = times[spec] < (1 - setting.min_gain) * times[choice]
    if worthwhile:
        return "calls_only" if isinstance(spec, Chain) else "window_taken"
    return "below_threshold"


def _too_many_ports(setting: Setting, spec: Spec) -> bool:
    return spec.kind == "direct" and setting.ranks - 1 > setting.ports


def _ideal_specs(setting: Setting, nbytes: int) -> list[Spec]:
    """The paper's chunk count, and the best one, for a delay that always covers the others' part."""
    if setting.topology:
        return late_specs(setting, nbytes)
    always = simulate.straggler(setting.ranks, nbytes, Delays([np.inf]), setting.alpha, setting.beta)
    return [Straggler(late=ROLE, chunks=chunks) for chunks in dict.fromkeys((setting.ranks - 1, always.chunks))]
