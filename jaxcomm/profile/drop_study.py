"""Finds out by trials which share of the gradients a training run may lose.

A model is trained until it reaches a target, with drops and without drops. Two training runs with the same seed start
from the same parameters and see the same data. The cost of a dropped share p is therefore the mean over the seeds of
d = rounds(p) − rounds(0), where rounds(p) is the number of rounds to the target.
The 90 % interval of the cost is mean ± t·s/√n. Here s is the standard deviation of the n differences, and t is the 95 %
point of Student's distribution with n − 1 degrees of freedom. The source below has n = 10.

The margin is a given share of the mean of rounds(0). A share p is tolerated if the interval's upper end is at most the
margin: with 95 % confidence, losing p costs no more rounds than the margin. An interval that contains 0 does not show
that drops cost nothing, because an interval from too few training runs contains 0 as well. If a training run never
reaches the target, the share is not tolerated. Shares are tried in ascending order up to the first share that is not
tolerated, so the confidence holds for all shares together without a correction.

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 3.2, tables 1 and
5. There ten training runs with drops need as many rounds to a target as runs without drops. The margin and the interval
are ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple, Self

import pydantic
from pydantic import Field

from jaxcomm.errors import load_extra
from jaxcomm.files import Positive, Share, Text, Value

CONFIDENCE = 0.95
Verdict = Literal["tolerated", "too much", "undecided"]


class Trial(Value):
    """The training runs in which the share `share` of the gradients is dropped.

    `rounds` has the rounds to the target for each seed. If a training run does not reach the target, its entry is null,
    and no further seed is tried.
    """

    share: Annotated[Share, Field(gt=0)]
    rounds: Annotated[list[Positive | None], Field(min_length=1, max_length=4096)]

    @pydantic.model_validator(mode="after")
    def _ends_where_the_target_was_not_reached(self) -> Self:
        if None in self.rounds[:-1]:
            raise ValueError(f"rounds[{self.rounds.index(None)}] is null; no seed is tried after one that fails")
        return self


class Excess(NamedTuple):
    """The extra rounds that a dropped share costs, their 90 % interval, the tolerated margin, and the verdict.

    `mean`, `low` and `high` are None if a training run never reached the target. The verdict is "too much" if a
    training run never reached the target, or if `low` is above the margin. It is "undecided" if the interval contains
    the margin.
    """

    mean: float | None
    low: float | None
    high: float | None
    margin: float
    verdict: Verdict


class Trials(Value):
    """The trials of a function `train`, whose metric must reach `target` within `max_rounds`.

    The metric must rise to the target, or with `falling` fall to it. `baseline` has the rounds to the target without
    drops, for each seed. A share of drops is tolerated if it costs at most `margin` times the baseline's mean in extra
    rounds.
    """

    train: Text
    target: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    falling: bool = False
    max_rounds: Positive
    margin: Annotated[Share, Field(gt=0)]
    baseline: Annotated[list[Positive], Field(min_length=2, max_length=4096)]
    trials: list[Trial]

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for i, trial in enumerate(self.trials):
            if i and trial.share <= self.trials[i - 1].share:
                raise ValueError(f"trials[{i}].share is {trial.share}; shares must ascend")
            if None not in trial.rounds and len(trial.rounds) != len(self.baseline):
                raise ValueError(
                    f"trials[{i}].rounds has {len(trial.rounds)} entries; baseline has {len(self.baseline)}"
                )
        return self

    @property
    def bound(self) -> float:
        """The greatest share up to which all tried shares are tolerated; 0 if no tried share is tolerated."""
        found = 0.0
        for trial in self.trials:
            if self.excess(trial).verdict != "tolerated":
                break
            found = trial.share
        return found

    def excess(self, trial: Trial) -> Excess:
        """The extra rounds that a trial's share costs."""
        return excess(self.baseline, trial.rounds, self.margin)

    def words(self) -> str:
        """Says in one line where the bound comes from."""
        cost = next((self.excess(trial) for trial in self.trials if trial.share == self.bound), None)
        found = f"measured: {len(self.baseline)} trainings each with {self.train}"
        if cost is None:
            return f"{found} tolerate no share that was tried"
        mean = statistics.fmean(self.baseline)
        more = f"{cost.mean:+.2g} ({cost.low:+.2g} to {cost.high:+.2g})"
        return f"{found} take {mean:.3g} rounds without drops, {more} with"


def excess(baseline: Sequence[int], rounds: Sequence[int | None], margin: float) -> Excess:
    """The extra rounds of training runs with drops, each compared with the run of the same seed without drops.

    Args:
      baseline: rounds without drops, by seed; at least 2.
      rounds: rounds with drops, by seed; None where the target was not reached.
      margin: the tolerated extra rounds, as a share of the baseline's mean.
    """
    limit = margin * statistics.fmean(baseline)
    reached = [each for each in rounds if each is not None]
    if len(reached) < len(rounds):
        return Excess(None, None, None, limit, "too much")
    special = load_extra("scipy.special", "the interval of a drop study")
    differences = [each - before for each, before in zip(reached, baseline, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    reach = float(special.stdtrit(count - 1, CONFIDENCE)) * statistics.stdev(differences) / math.sqrt(count)
    verdict: Verdict = "undecided"
    if mean + reach <= limit:
        verdict = "tolerated"
    elif mean - reach > limit:
        verdict = "too much"
    return Excess(mean, mean - reach, mean + reach, limit, verdict)


def search(
    run: Callable[[float, int], int | None], shares: Sequence[float], repeats: int, margin: float
) -> tuple[list[int], list[Trial]]:
    """The rounds without drops, and the trials of ascending shares up to the first share that is not tolerated.

    Args:
      run: a function that trains with a dropped share and a seed, and returns the rounds to the target, or None if the
        target is not reached. With share 0 the target is always reached.
      shares: ascending, above 0.
      repeats: number of training runs per share, at least 2; their seeds are 0, 1, ….
      margin: the tolerated extra rounds, as a share of the baseline's mean.
    """
    baseline = [found for seed in range(repeats) if (found := run(0.0, seed)) is not None]
    trials: list[Trial] = []
    for share in shares:
        rounds: list[int | None] = []
        for seed in range(repeats):
            rounds.append(run(share, seed))
            if rounds[-1] is None:
                break
        trials.append(Trial(share=share, rounds=rounds))
        if excess(baseline, rounds, margin).verdict != "tolerated":
            break
    return baseline, trials
