"""Counts the rounds that a user's training takes to reach its target, and keeps the counts in a file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.files import Positive, Share, Text, Value

if TYPE_CHECKING:
    from jaxcomm.collectives.drops.drop import Drop

Train = Callable[["Drop | None", int], Iterable[float]]
MAX_BYTES: Final = 16 * 2**20


class TrainingKey(Value):
    """The setting of all training runs in a file; `source` is the SHA-256 of the file that defines the training."""

    train: Text
    source: Text
    target: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    falling: bool
    max_rounds: Positive


class FinishedTraining(Value):
    """A finished training run: its dropped share (0: no drops), its seed, its rounds (null: the target was missed)."""

    share: Share
    seed: Annotated[int, Field(ge=0, strict=True)]
    rounds: Positive | None


class Kept(Value):
    """The content of a file of training runs."""

    format: Literal["jaxcomm-trainings"] = "jaxcomm-trainings"
    version: Literal[1] = 1
    setting: TrainingKey
    runs: list[FinishedTraining] = []


_KIND: Final = files.Kind("trainings", 1, Kept, ProfileError, "`jaxcomm profile drop-bound`")


class Trainings:
    """The finished training runs of one setting, in a file that is rewritten after each run."""

    def __init__(self, path: str, setting: TrainingKey, runs: Iterable[FinishedTraining] = ()) -> None:
        self.path, self.setting = path, setting
        self._runs = {(run.share, run.seed): run for run in runs}

    @classmethod
    def load(cls, path: str, setting: TrainingKey) -> Self:
        """Loads the training runs in the file. If there is no file, the result is empty.

        Raises:
          ProfileError: the file is broken, or keeps training runs of another setting.
        """
        if not os.path.exists(path):
            return cls(path, setting)
        kept = _KIND.validate(_KIND.parse(files.read(path, MAX_BYTES, ProfileError), path), path)
        for name, now in setting:
            if (before := getattr(kept.setting, name)) != now:
                problem = (
                    f"keeps trainings with another {name}: {files.short(before)}, not {files.short(now)}"
                    if name != "source"
                    else f"keeps trainings from before {setting.train.rpartition(':')[0]} was changed"
                )
                raise ProfileError(files.mistake(path, problem, "remove the file, or choose another --out"))
        return cls(path, setting, kept.runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, key: tuple[float, int]) -> bool:
        return key in self._runs

    def rounds(self, share: float, seed: int, train: Callable[[], int | None]) -> int | None:
        """Returns the stored number of rounds. If none is stored, runs `train` and stores its result."""
        if (share, seed) not in self._runs:
            self._runs[share, seed] = FinishedTraining(share=share, seed=seed, rounds=train())
            kept = Kept(setting=self.setting, runs=list(self._runs.values()))
            files.write(self.path, kept.model_dump_json(indent=1) + "\n", ProfileError)
        return self._runs[share, seed].rounds


def rounds_to_target(
    train: Train, drop: Drop | None, seed: int, setting: TrainingKey, each_round: Callable[[int, float], object]
) -> int | None:
    """Trains until the metric reaches the target, and returns the number of rounds, at least 1.

    Returns None if a training run with drops does not reach the target. A metric that is not finite ends the run, and
    the target counts as not reached.

    Args:
      train: yields the metric after each round.
      drop: first argument of `train`.
      seed: second argument of `train`.
      setting: the target, and the maximum number of rounds.
      each_round: called with each round's number and metric.

    Raises:
      ProfileError: a metric is not a number; or, without drops, there is no metric, or the metric is not finite or does
        not reach the target.
    """
    name, count, metric = setting.train, 0, math.nan
    for count, given in enumerate(train(drop, seed), 1):
        metric = _metric(given, name, count)
        each_round(count, metric)
        if (metric <= setting.target) if setting.falling else (metric >= setting.target):
            return count
        if not math.isfinite(metric) or count == setting.max_rounds:
            break
    if drop is not None:
        return None
    if not count:
        raise ProfileError(f"{name}: yielded no metric with seed {seed}.\n  Cure: yield the metric after each round.")
    if not math.isfinite(metric):
        problem, cure = (
            f"the metric is {metric} after round {count}",
            "mend the training; it diverges without drops, too",
        )
    else:
        reached = "fallen" if setting.falling else "risen"
        problem = (
            f"after {count} rounds the metric is {metric:.4g}; it has not {reached} to the target {setting.target:g}"
        )
        cure = "an easier --target, more --max-rounds, or --falling for a metric that falls, such as a loss"
    raise ProfileError(files.mistake(name, f"{problem} (seed {seed}, no drops)", cure))


def _metric(given: Any, name: str, count: int) -> float:
    try:
        return float(given)
    except (TypeError, ValueError):
        problem = f"yielded {files.short(given)} after round {count}, which is not a number"
        raise ProfileError(files.mistake(name, problem, "yield the metric after each round")) from None
