"""A training log with the allreduce's time and size for each rank and step, as StragglAR's authors print it.

    Rank 2 | Step 7 | … | AR Time: 118.06 ms | AR Buffer Size: 12549804.00 KB

Two records may share a line; ANSI colours, blank lines and other lines are skipped.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import MAX_RANKS, Collective, Profile, Provenance

NAME = "a training log"
LOOKED_FOR = "'Rank R | Step S | … AR Time: T ms | AR Buffer Size: B KB'"

WARMUP_FACTOR = 3.0

_RECORD = re.compile(r"Rank\s+(\d{1,9})\s*\|\s*Step\s+(\d{1,9})\s*\|")
_TIME = re.compile(r"AR Time:\s*(\S+)\s*ms\b")
_SIZE = re.compile(r"AR Buffer Size:\s*(\S+)\s*KB\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Record(NamedTuple):
    line: int
    rank: int
    step: int
    seconds: float
    bytes: int


def sniff(data: bytes) -> bool:
    """Whether the bytes contain a record."""
    return re.search(rb"Rank\s+\d+\s*\|\s*Step\s+\d+\s*\|", data) is not None and b"AR Time:" in data


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the logged run.

    All ranks leave an allreduce together, so the rank that spends the least time in it arrived last. In each step the
    lateness of rank r is therefore max(AR) - AR_r, and the allreduce itself takes the last rank's AR time. Leading
    steps whose median time is above 3 times the median over all steps are dropped as warm-up. Steps in which a rank is
    missing are also dropped, if they are fewer than half of the steps. If a rank repeats a step number, a new epoch
    begins.

    Args:
      data: the log.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile, with α assumed: one size cannot separate α from β.

    Raises:
      ProfileError: an invalid value, two buffer sizes, or too few complete steps. The error text names the line.
    """
    records = list(_records(data.decode("utf-8", errors="replace"), where))
    ranks = max((record.rank for record in records), default=0) + 1
    if ranks < 2:
        raise ProfileError(
            f"{where}: has complete records of {len({record.rank for record in records})} rank; lateness needs two.\n"
            "  Cure: log every rank's AR Time and AR Buffer Size, into one file."
        )
    nbytes = _one_size(records, where)
    times, incomplete = _steps(records, ranks, where)
    warmup = _warmup_steps(times)
    times = times[warmup:]
    seconds = float(np.median(times.min(axis=1)))
    dropped = f", {incomplete} incomplete dropped" if incomplete else ""
    source = f"{where}: {len(times)} steps after {warmup} of warm-up{dropped}, median time on the last rank"
    return Profile(
        ranks=ranks,
        link=fit([Sample(bytes=nbytes, seconds=seconds)], "all_reduce", ranks, source),
        arrivals=(times.max(axis=1, keepdims=True) - times).round(9).tolist(),
        warmup_dropped=warmup,
        collective=Collective(bytes=nbytes, seconds=seconds),
        provenance=Provenance(source=where, tool="training log", created=created),
    )


def _records(text: str, where: str) -> Iterator[_Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        for part in re.split(r"(?=Rank\s+\d+\s*\|)", _COLOUR.sub("", line)):
            start, time, size = _RECORD.match(part), _TIME.search(part), _SIZE.search(part)
            if not (start and time and size):
                continue  # not a record, or a truncated record; a truncated record's step counts as incomplete
            rank = int(start[1])
            if rank >= MAX_RANKS:
                raise ProfileError(
                    f"{where}:{number}: rank is {rank}; at most {MAX_RANKS} ranks are supported.\n"
                    "  Cure: mend or delete that record."
                )
            seconds = _number(time[1], "AR Time", where, number) / 1e3
            nbytes = round(_number(size[1], "AR Buffer Size", where, number) * 1024)
            yield _Record(number, rank, int(start[2]), seconds, nbytes)


def _number(text: str, name: str, where: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-3 <= value <= 1e12:
        raise ProfileError(
            f"{where}:{line}: {name} is {text}; it must be a number from 0.001 to 1e12.\n"
            "  Cure: mend or delete that record."
        )
    return value


def _one_size(records: list[_Record], where: str) -> int:
    first = records[0]
    other = next((record for record in records if record.bytes != first.bytes), None)
    if other:
        raise ProfileError(
            f"{where}:{other.line}: AR Buffer Size is {other.bytes} bytes, but {first.bytes} in line {first.line}; "
            "lateness can be compared for one size only.\n  Cure: keep the records of one size."
        )
    return first.bytes


def _steps(records: list[_Record], ranks: int, where: str) -> tuple[np.ndarray, int]:
    """The times of the complete steps (steps × ranks), and the number of incomplete steps."""
    epochs: dict[tuple[int, int], int] = defaultdict(int)
    steps: dict[tuple[int, int], dict[int, _Record]] = defaultdict(dict)
    for record in records:
        epoch = epochs[record.rank, record.step]
        epochs[record.rank, record.step] += 1
        steps[epoch, record.step][record.rank] = record
    complete = [step for _, step in sorted(steps.items()) if len(step) == ranks]
    incomplete = len(steps) - len(complete)
    if incomplete >= max(1, len(complete)):
        (_, number), step = next((key, step) for key, step in sorted(steps.items()) if len(step) < ranks)
        missing = sorted(set(range(ranks)) - set(step))
        raise ProfileError(
            f"{where}:{max(record.line for record in step.values())}: step {number} has no record of rank "
            f"{', '.join(map(str, missing[:8]))} of {ranks}, and {incomplete} of {len(steps)} steps are incomplete.\n"
            "  Cure: log every rank, into one file."
        )
    return np.array([[step[rank].seconds for rank in range(ranks)] for step in complete]), incomplete


def _warmup_steps(times: np.ndarray) -> int:
    """The number of leading steps whose median time is above WARMUP_FACTOR times the median over all steps."""
    per_step = np.median(times, axis=1)
    slow = per_step > WARMUP_FACTOR * np.median(per_step)
    return int(np.argmin(slow))  # the first step that is not slow; one exists, as the median step is not slow
