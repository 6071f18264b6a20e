"""The drops that a training bears, by trial: the rounds that it takes to its target, with and without drops.

With the same seed a training starts from the same parameters and sees the same data, so what a share p costs is the
mean over the seeds of d = rounds(p) − rounds(0). Its 90 % interval is mean ± t·s/√n, with s the standard deviation of
the n differences and t the 95 % point of Student's distribution with n − 1 degrees of freedom; n is 10 in the paper.

A share is tolerated if the interval's upper end is at most the margin, a share of the mean of rounds(0): with 95 %
confidence, losing p costs no more rounds than that. That the interval holds 0 would not do, as it also does where there
are too few trainings to decide. A training that never reaches the target settles it: the share is not tolerated. Shares
are tried in ascending order up to the first that is not tolerated, so the confidence holds for all of them together
without a correction.

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 3.2, tables 1 and
5: the same rounds to the same target, ten times. The margin and the interval are ours.
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
    """Trainings that lose this share: the rounds to the target by seed (null: not reached; the seeds end there)."""

    share: Annotated[Share, Field(gt=0)]
    rounds: Annotated[list[Positive | None], Field(min_length=1, max_length=4096)]

    @pydantic.model_validator(mode="after")
    def _ends_where_the_target_was_not_reached(self) -> Self:
        if None in self.rounds[:-1]:
            raise ValueError(f"rounds[{self.rounds.index(None)}] is null; no seed is tried after one that fails")
        return self


class Excess(NamedTuple):
    """The extra rounds of a share, their 90 % interval, the most that is tolerated, and what follows.

    Without numbers (None) where a training never reached the target. "too much": even the lower end is above the
    margin; "undecided": the interval holds the margin.
    """

    mean: float | None
    low: float | None
    high: float | None
    margin: float
    verdict: Verdict


class Trials(Value):
    """The trials: a function `train`, to a target that its metric rises to, or falls to, in at most `max_rounds`.

    `baseline` are the rounds to the target without drops, by seed; `margin` the share of the baseline's mean by
    which a tolerated share may prolong the training.
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
        """The greatest share up to which all that were tried are tolerated; 0: none is."""
        found = 0.0
        for trial in self.trials:
            if self.excess(trial).verdict != "tolerated":
                break
            found = trial.share
        return found

    def excess(self, trial: Trial) -> Excess:
        """The cost of a share."""
        return excess(self.baseline, trial.rounds, self.margin)

    def words(self) -> str:
        """Where the bound comes from, in one line."""
        cost = next((self.excess(trial) for trial in self.trials if trial.share == self.bound), None)
        found = f"measured: {len(self.baseline)} trainings each with {self.train}"
        if cost is None:
            return f"{found} tolerate no share that was tried"
        mean = statistics.fmean(self.baseline)
        more = f"{cost.mean:+.2g} ({cost.low:+.2g} to {cost.high:+.2g})"
        return f"{found} take {mean:.3g} rounds without drops, {more} with"


def excess(baseline: Sequence[int], rounds: Sequence[int | None], margin: float) -> Excess:
    """The extra rounds of trainings with drops, by the same seeds as the baseline's.

    Args:
      baseline: rounds without drops, by seed; at least 2.
      rounds: with drops; None: the target was not reached.
      margin: the share of the baseline's mean that is tolerated.
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
    """The rounds without drops, and those of ascending shares up to the first that is not tolerated.

    Args:
      run: trains with a share and a seed; the rounds to the target, or None. With share 0 it may not be None.
      shares: above 0, ascending.
      repeats: trainings of each, at least 2; their seeds are 0, 1, ….
      margin: the share of the baseline's mean that is tolerated.
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
