"""The α–β model of a link, from timed collectives, and curves through measured times."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Link, OpName, ScheduleName

ASSUMED_ALPHA_S = 3e-6
ASSUMED_BETA_S = 1e-10
LEAST_RATIO: Final = 2  # minimum ratio of the largest size to the smallest at which α and β can be separated
LEAST_S: Final = 1e-12  # minimum seconds of a timed call; shorter times raise ProfileError
LEAST_TURN: Final = 1e-9  # the search for α and β ends when their logarithms change by no more than this

Floats = NDArray[np.float64]


def fit(samples: Sequence[Sample], op: OpName, ranks: int, source: str, schedule: ScheduleName = "ring") -> Link:
    """The α and β of one hop that explain the samples best; neither is below 0.

    A collective is modelled as the ring that NCCL and MPI use for large buffers: an allreduce of s bytes over n ranks
    takes T = 2(n-1) α + 2(n-1)/n s β, or with the direct schedule 2 α + 2(n-1)/n s β. `rounds_and_share` has the terms
    of the other collectives. The logarithms of the times are fitted. Relative errors therefore count alike at small and
    large sizes, and a sample of twice the model's time counts like a sample of half the model's time.

    With only one size, or sizes less than a factor of two apart, α and β cannot be separated. In this case α is
    assumed: 3 µs (a GPU launch and one NVLink or InfiniBand hop), but at most half of the shortest time divided by the
    number of rounds. β is computed from the rest of the time. The link's `alpha_assumed` and `source` say that α is
    assumed.

    Args:
      samples: one or more timed calls; several may have the same size.
      op: the collective that the samples timed.
      ranks: the number of ranks of each call.
      source: a note on the samples' origin, to which a note on the fit is added.
      schedule: the schedule that the collective ran: "ring", or "direct", in which all ranks exchange at once.

    Returns:
      The link, with the samples and the rms residual of the logarithms.

    Raises:
      ProfileError: no sample, or a time below `LEAST_S`.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", section 4.
    """
    shortest = min((sample.seconds for sample in samples), default=0.0)
    if shortest < LEAST_S:
        raise ProfileError(
            f"{source}: {f'a timed call took {shortest:g} s' if samples else 'no timed call'}; α and β need times from "
            f"{LEAST_S:g} s on.\n  Cure: measure again, with sizes that take at least a microsecond."
        )
    terms = _terms(samples, op, ranks, schedule)
    seconds = np.array([sample.seconds for sample in samples])
    sizes = sorted({sample.bytes for sample in samples})
    alpha_assumed = sizes[-1] < LEAST_RATIO * sizes[0]
    if not alpha_assumed:
        alpha, beta = _least_log_squares(terms / seconds[:, None])
        how = f"least squares of logarithms over {len(samples)} samples of up to {sizes[-1]} bytes"
        if alpha == 0 or beta == 0:
            how += f", {'α' if alpha == 0 else 'β'} too small to see"
    else:
        rounds = float(terms[0, 0])
        alpha = min(ASSUMED_ALPHA_S, shortest / 2 / rounds)
        beta = float(np.median((seconds - rounds * alpha) / terms[:, 1]))
        guess = f"{alpha * 1e6:.2g} µs" + ("" if alpha == ASSUMED_ALPHA_S else ", half of the time")
        why = "one size only" if len(sizes) == 1 else "sizes less than a factor of two apart"
        how = f"{why}: α assumed {guess}; β from {op} by {schedule} in {np.median(seconds) * 1e3:.4g} ms"
    residual = np.sqrt(np.mean(np.square(np.log(terms @ np.array([alpha, beta]) / seconds))))
    return Link(
        alpha_s=alpha,
        beta_s_per_byte=beta,
        alpha_assumed=alpha_assumed,
        samples=list(samples),
        residual=float(residual),
        source=f"{source}; {how}"[:4096],
        op=op,
        schedule=schedule,
    )


def assumed(source: str) -> Link:
    """A link for measurements without sizes: 3 µs and 10 GB/s; its `source` says that both are assumed."""
    how = f"no sizes: α assumed {ASSUMED_ALPHA_S * 1e6:g} µs and β assumed 10 GB/s"
    return Link(
        alpha_s=ASSUMED_ALPHA_S, beta_s_per_byte=ASSUMED_BETA_S, alpha_assumed=True, source=f"{source}; {how}"[:4096]
    )


def rounds_and_share(op: OpName, ranks: int, schedule: ScheduleName = "ring") -> tuple[int, float]:
    """The number of rounds of the collective, and the share of the buffer that a rank sends in all rounds together.

    The buffer is counted whole, as in nccl-tests: the input of reduce_scatter, the output of all_gather.
    """
    others = ranks - 1
    match op:
        case "all_reduce":
            rounds, share = 2 * others, 2 * others / ranks
        case "reduce_scatter" | "all_gather" | "all_to_all":
            rounds, share = others, others / ranks
        case "broadcast" | "reduce":
            rounds, share = others, 1.0
        case "send_recv":
            return 1, 1.0
    return (rounds // others if schedule == "direct" else rounds), share


def _terms(samples: Sequence[Sample], op: OpName, ranks: int, schedule: ScheduleName) -> Floats:
    rounds, share = rounds_and_share(op, ranks, schedule)
    return np.array([[rounds, share * sample.bytes] for sample in samples], dtype=float)


def _least_log_squares(terms: Floats) -> tuple[float, float]:
    """The non-negative α and β for which the logarithms of `terms @ (α, β)` are closest to 0 (least squares).

    `terms` has one row per sample, divided by the sample's measured time, so `terms @ (α, β)` are modelled times
    divided by measured times. At the optimum, either α or β is 0, or both are above 0. If one is 0, the mean of the
    logarithms gives the other. If both are above 0, Gauss–Newton steps in log α and log β find them, beginning at the
    linear least-squares solution. A step that does not reduce the error is halved.
    """
    alone = [np.exp(-np.mean(np.log(column))) * unit for column, unit in zip(terms.T, np.eye(2), strict=True)]
    best = min(alone, key=lambda values: _log_errors(terms, values))
    start = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)[0]
    values = np.asarray(start if (start > 0).all() else (alone[0] + alone[1]) / 2, np.float64)
    least, step = _log_errors(terms, values), 1.0
    turn: Floats = np.ones(2)
    while np.abs(step * turn).max() > LEAST_TURN:
        shares = terms * values / (terms @ values)[:, None]
        turn = np.asarray(np.linalg.lstsq(shares, -np.log(terms @ values), rcond=None)[0], np.float64)
        turned = values * np.exp(np.clip(step * turn, -1, 1))
        if (errors := _log_errors(terms, turned)) < least:
            values, least, step = turned, errors, min(1.0, 2 * step)
        else:
            step /= 2
    best = min(best, values, key=lambda values: _log_errors(terms, values))
    return float(best[0]), float(best[1])


def _log_errors(terms: Floats, values: Floats) -> float:
    return float(np.sum(np.square(np.log(terms @ values))))


class Curve(NamedTuple):
    """Seconds as a function of bytes.

    The curve is interpolated between samples and constant below the first sample. Beyond the last sample it grows by
    `slope` seconds per byte.
    """

    sizes: tuple[int, ...]
    times: tuple[float, ...]
    slope: float

    @classmethod
    def of(cls, sizes: Sequence[int], times: Sequence[float]) -> Self:
        """The curve through samples whose sizes ascend and whose times do not fall.

        Beyond the last sample, the curve grows as it does over the last octave of sizes, or in proportion to the size
        if it does not grow there.
        """
        octave = max(0, bisect.bisect_right(sizes, sizes[-1] / 2) - 1)
        grown = times[-1] - times[octave]
        slope = grown / (sizes[-1] - sizes[octave]) if grown > 0 else times[-1] / sizes[-1]
        return cls(tuple(sizes), tuple(map(float, times)), float(slope))

    def __call__(self, nbytes: ArrayLike) -> NDArray[np.float64]:
        """The seconds for one size, or for each size of an array."""
        above = self.slope * np.maximum(0.0, np.asarray(nbytes, np.float64) - self.sizes[-1])
        seconds: NDArray[np.float64] = np.interp(np.asarray(nbytes, np.float64), self.sizes, self.times) + above
        return seconds

    def bytes(self, seconds: ArrayLike) -> NDArray[np.float64]:
        """For each time, the largest size that takes no longer; 0 if even the first sample takes longer."""
        ends = np.asarray(seconds, np.float64)
        above = np.maximum(0.0, ends - self.times[-1]) / self.slope
        nbytes: NDArray[np.float64] = np.interp(ends, self.times, self.sizes, left=0.0) + above
        return nbytes


def without_noise(times: Sequence[float]) -> NDArray[np.float64]:
    """For each size, the minimum of the times of this size and of all larger sizes. Noise only adds time.

    `times` are in order of size.
    """
    least: NDArray[np.float64] = np.minimum.accumulate(np.asarray(times, np.float64)[::-1])[::-1]
    return least
