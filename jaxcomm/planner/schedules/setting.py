"""What schedules are chosen for, and what a schedule takes there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxcomm import schedules, simulate
from jaxcomm.plan import build
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.values import Chain, Nccl, Solved, Spec, Stragglers
from jaxcomm.schedules import Schedule, Template
from jaxcomm.simulate import Delays
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


@lru_cache(maxsize=4096)
def _schedule(kind: str, ranks: int, late: int, chunks: int) -> Schedule:
    """The schedule for these numbers; which ranks are late changes nothing in its phases' rounds and volumes."""
    make = schedules.stragglers if kind == "stragglers" else schedules.chain
    return make(ranks, range(late), chunks)
