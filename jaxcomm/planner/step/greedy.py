"""A good packing to start the solver from: one change at a time, for as long as one gains."""

from __future__ import annotations

import numpy as np

from jaxcomm.planner.step.jobs import Jobs, Packing
from jaxcomm.planner.step.queue import Ints, StepQueue


def greedy(jobs: Jobs, queue: StepQueue, weights: Ints) -> Packing:
    """Every size takes its best option while the others stay, the largest first; then two neighbours become one bucket,
    the last first, wherever that gains; and again until nothing does.

    Args:
      jobs: the step's gradients, and what buckets can be made of them.
      queue: of the network, for some steps.
      weights: of those steps.
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
