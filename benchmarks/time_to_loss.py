"""Training time to a held-out loss, and ratios of these times; shared by benchmarks of trainings."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import turns
from scipy import stats

from common.training import Training
from jaxcomm.report.tables import table


class Reached(NamedTuple):
    """A training up to the first measurement at or below the target.

    Attributes:
      seconds: time of its steps on this process, without measurements; None: the target was not reached.
      steps: number of steps.
      step_s: seconds of a step, the median over the blocks between measurements.
      loss: the last held-out loss.
    """

    seconds: float | None
    steps: int
    step_s: float
    loss: float


def reach(training: Training, seed: int, target: float, every: int, most: int) -> Reached:
    """Trains until the loss of the workers' mean variables is at most `target`, measured after every `every` steps.

    Gives up after `most` steps. Reuses the compiled functions of earlier calls with the same `every`.
    """
    state, blocks, loss = training.init(seed), list[float](), math.inf
    while loss > target and len(blocks) * every < most:
        start = time.perf_counter()
        state, _ = jax.block_until_ready(training.steps(state, every))
        blocks.append(time.perf_counter() - start)
        loss = training.score(state)[training.metric]
    seconds = sum(blocks) if loss <= target else None
    return Reached(seconds, len(blocks) * every, statistics.median(blocks) / every, loss)


def summary(found: Mapping[str, Sequence[Reached]]) -> dict[str, Any]:
    """For --json: for each way, the lists over the seeds, and the ratio of its seconds to the first way's."""
    first = next(iter(found))
    return {
        way: {name: [each._asdict()[name] for each in own] for name in Reached._fields}
        | {"ratio": ratio(own, found[first])}
        for way, own in found.items()
    }


def row(found: Mapping[str, Sequence[Reached]]) -> dict[str, Any]:
    """For --out: for each way, the seconds of each seed; infinite if a training did not reach the loss."""
    seconds = {way: [math.inf if each.seconds is None else each.seconds for each in own] for way, own in found.items()}
    return turns.row(seconds)


def report(found: Mapping[str, Sequence[Reached]]) -> str:
    """A table with a row for each way."""
    first, rows = next(iter(found)), []
    for way, own in found.items():
        seconds = ", ".join("–" if each.seconds is None else f"{each.seconds:.1f}" for each in own)
        steps = ", ".join(str(each.steps) for each in own)
        step_ms = 1e3 * statistics.median(each.step_s for each in own)
        compared = ratio(own, found[first])
        beside = "–" if compared is None else "{:.2f} ({:.2f} to {:.2f})".format(*compared)
        rows.append([way, seconds, steps, f"{step_ms:.1f}", "" if way == first else beside])
    return table(["way", "seconds to the loss, by seed", "steps", "ms a step", f"of {first}'s time (95 %)"], rows)


def ratio(own: Sequence[Reached], others: Sequence[Reached]) -> tuple[float, float, float] | None:
    """The geometric mean of the seeds' ratios with its 95 % interval, by Student's t of their logarithms.

    None with fewer than two seeds, or if one of the trainings did not reach the loss.
    """
    pairs = [(one.seconds, other.seconds) for one, other in zip(own, others, strict=True)]
    logs = [math.log(one / other) for one, other in pairs if one is not None and other is not None]
    if len(logs) < max(2, len(pairs)):
        return None
    middle = statistics.mean(logs)
    error = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / len(logs) ** 0.5
    low, mean, high = (math.exp(middle + each) for each in (-error, 0.0, error))
    return mean, low, high
