"""Finds a good packing for the solver to start from, by single changes as long as a change gains."""

from __future__ import annotations

import numpy as np

from jaxcomm.planner.step.jobs import Jobs, Packing
from jaxcomm.planner.step.queue import Ints, StepQueue


def greedy(jobs: Jobs, queue: StepQueue, weights: Ints) -> Packing:
    """Starts with one atom (see `Atoms`) per bucket, and changes this packing until no change gains.

    A pass first gives each size, the largest first, its best option while the other sizes keep theirs. Then the pass
    merges neighbouring buckets, the last first, where a merge gains.

    Args:
      jobs: the step's gradients, and the buckets that they can form.
      queue: the network's queue for some steps.
      weights: weights of those steps.
    """

    def cost(packing: Packing) -> float:
        return float(np.average(jobs.exposed(queue, packing), weights=weights)) + jobs.min_savings(packing)

    runs = {(run.begin, run.end): run for run in jobs.runs}
    packing = jobs.single
    before, least = np.inf, cost(packing)
    while least < before:
        before = least
        for size in sorted({run.bytes for run in packing.runs}, reverse=True):
            options = range(len(jobs.options[size]))
            packing = min([packing, *(packing.with_option(size, option) for option in options)], key=cost)
        for i in reversed(range(len(packing.runs) - 1)):
            merged = runs.get((packing.runs[i].begin, packing.runs[i + 1].end))
            if merged:
                buckets = Packing((*packing.runs[:i], merged, *packing.runs[i + 2 :]), packing.choice)
                options = range(len(jobs.options[merged.bytes]))
                packing = min([packing, *(buckets.with_option(merged.bytes, option) for option in options)], key=cost)
        least = cost(packing)
    return packing
