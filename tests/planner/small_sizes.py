"""Compares a plan's time for a size with the best time of the straggler family for this size."""

from __future__ import annotations

import numpy as np

from jaxcomm import plan, simulate
from jaxcomm.profile import Profile
from jaxcomm.simulate import Delays, tune
from tests.planner.profiles import made

BETA = 1e-8


def late_by(ranks: int, latency: int, delay: str) -> Profile:
    """A profile of links whose α is the time of `latency` bytes.

    With the delay "none" no rank is late. With "some" the last rank is late by half the time of a few KiB, with "long"
    by more than the time of any schedule.
    """
    seconds = {"none": 0.0, "some": (ranks * latency + 2**12) * BETA / 2, "long": 1e3}[delay]
    return made(ranks, [seconds] * 9, alpha=latency * BETA, beta=BETA)


def behind(made_plan: plan.Plan, source: Profile, nbytes: int) -> float:
    """The plan's predicted time for a size, divided by the best time of the straggler family."""
    schedule = made_plan.schedule_for(nbytes)
    assert schedule is not None
    late, ranks = Delays([max(row) for row in source.arrivals]), source.ranks
    link = source.link.alpha_s, source.link.beta_s_per_byte
    most = tune.max_chunks(ranks, nbytes)
    covered, blocks = np.arange(1, most + 1), np.arange(most // ranks + 1)
    if nbytes > 2**14:  # trying all counts would take too long
        covered, blocks = tune.counts(most, ranks - 1), np.append(0, tune.counts(max(1, most // ranks), 1))
    everything = tune.grid(ranks, nbytes, covered, blocks, *link)
    best = (late.exposed(everything.before) + everything.after).min()
    return float(simulate.seconds(schedule, nbytes, late, *link) / best)
