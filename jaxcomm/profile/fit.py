"""The α–β model of a link, from timed collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.numbers import Sample
from jaxcomm.profile.schema import Link, OpName, ScheduleName

ASSUMED_ALPHA_S = 3e-6
ASSUMED_BETA_S = 1e-10


def fit(samples: Sequence[Sample], op: OpName, ranks: int, source: str, schedule: ScheduleName = "ring") -> Link:
    """The α and β of one hop that explain the samples best, neither below 0.

    A collective is taken as the ring that NCCL and MPI use for large buffers: an allreduce of s bytes over n ranks is
    T = 2(n-1) α + 2(n-1)/n s β, or with the direct schedule 2 α + 2(n-1)/n s β; see `rounds_and_share` for the others.
    Each sample's error is weighed relative to its own time, so that microseconds at 1 KiB count as much as
    milliseconds at 1 GiB. With one size only, α cannot be told from β: then α is assumed 3 µs (a GPU launch and one
    NVLink or InfiniBand hop), but at most half of the time, β takes the rest, and `source` says so.

    Args:
      samples: one or more timed calls; several of one size are welcome.
      op: the collective that they timed.
      ranks: how many ranks took part.
      source: where the samples come from, in words; how they were fitted is added to it.
      schedule: what the collective ran: "ring", or "direct", in which all ranks exchange at once.

    Returns:
      The link, with the samples and the relative rms of what the model leaves.

    Raises:
      ProfileError: no sample, or a time of 0.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", section 4.
    """
    if not samples or any(sample.seconds <= 0 for sample in samples):
        raise ProfileError(
            f"{source}: {'a timed call took 0 s' if samples else 'no timed call'}; α and β need times above 0.\n"
            "  Cure: measure again, with sizes that take at least a microsecond."
        )
    terms = _terms(samples, op, ranks, schedule)
    seconds = np.array([sample.seconds for sample in samples])
    if len({sample.bytes for sample in samples}) > 1:
        alpha, beta = _non_negative_least_squares(terms / seconds[:, None], np.ones(len(samples)))
        how = f"relative least squares over {len(samples)} samples"
        if alpha == 0 or beta == 0:
            how += f", {'α' if alpha == 0 else 'β'} too small to see"
    else:
        rounds, moved = map(float, terms[0])
        median = float(np.median(seconds))
        alpha = min(ASSUMED_ALPHA_S, median / 2 / rounds)
        beta = (median - rounds * alpha) / moved
        what = f"{alpha * 1e6:.2g} µs" + ("" if alpha == ASSUMED_ALPHA_S else ", half of the time")
        how = f"one size only: α assumed {what}; β from {op} by {schedule} in {median * 1e3:.4g} ms"
    residual = np.sqrt(np.mean(np.square(terms @ np.array([alpha, beta]) / seconds - 1)))
    return Link(
        alpha_s=alpha,
        beta_s_per_byte=beta,
        samples=list(samples),
        residual=float(residual),
        source=f"{source}; {how}"[:4096],
        op=op,
        schedule=schedule,
    )


def assumed(source: str) -> Link:
    """A link for measurements that hold no sizes: 3 µs and 10 GB/s, with `source` saying that both are assumed."""
    how = f"no sizes: α assumed {ASSUMED_ALPHA_S * 1e6:g} µs and β assumed 10 GB/s"
    return Link(alpha_s=ASSUMED_ALPHA_S, beta_s_per_byte=ASSUMED_BETA_S, source=f"{source}; {how}"[:4096])


def rounds_and_share(op: OpName, ranks: int, schedule: ScheduleName = "ring") -> tuple[int, float]:
    """How many rounds the collective takes, and the share of the buffer that a rank sends in all of them.

    The buffer is the whole one: the input of reduce_scatter, the output of all_gather (as nccl-tests counts).
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


def _terms(samples: Sequence[Sample], op: OpName, ranks: int, schedule: ScheduleName) -> np.ndarray:
    rounds, share = rounds_and_share(op, ranks, schedule)
    return np.array([[rounds, share * sample.bytes] for sample in samples], dtype=float)


def _non_negative_least_squares(terms: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """With two unknowns the optimum has both, or one alone: the best of the three that is not negative."""
    best, solution = np.inf, (0.0, 0.0)
    for columns in ([0, 1], [0], [1]):
        values = np.zeros(2)
        values[columns] = np.linalg.lstsq(terms[:, columns], target, rcond=None)[0]
        rest = float(np.sum((terms @ values - target) ** 2))
        if (values >= 0).all() and rest < best:
            best, solution = rest, (float(values[0]), float(values[1]))
    return solution
