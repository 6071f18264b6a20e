"""XLA's own collectives in place of our executor's schedules, for the sizes at which they save enough.

Both executors were timed in turns by one clock, so their times are comparable. Without a plan our executor runs the
calls. It is therefore replaced only if the saving exceeds the measurement error at the timed sizes below and above a
call's size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxcomm.plan.limits import MAX_ALTERNATIVES
from jaxcomm.plan.values import Alternative, Entry, Spec
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import choose
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.schedules import Schedule


class _Piece(NamedTuple):
    """A part of an entry's range, and the schedule that XLA's collectives run there; None if our executor runs it."""

    low: int
    high: int | None
    spec: Spec | None
    of: Entry


@dataclass(frozen=True)
class WithXla:
    """The setting of calls that our executor runs, and the setting of calls that XLA's collectives run."""

    own: Setting
    by_xla: Setting

    def entries(self, found: Sequence[Entry], buckets: Mapping[int, Spec], are_by_xla: bool) -> tuple[Entry, ...]:
        """The entries, divided where XLA's collectives take over.

        Args:
          found: entries of our executor.
          buckets: sizes that have entries of their own, and their schedules by the step's plan.
          are_by_xla: whether XLA's collectives run the buckets, with the schedules in `buckets`.
        """
        pieces: list[_Piece] = []
        for each in found:
            if each.min_bytes in buckets:
                spec = buckets[each.min_bytes] if are_by_xla else None
                pieces.append(_Piece(each.min_bytes, each.max_bytes, spec, each))
                continue
            for low, high, spec in self._choices:
                low = max(low, each.min_bytes)
                high = each.max_bytes if high is None else high if each.max_bytes is None else min(high, each.max_bytes)
                if high is None or low <= high:
                    pieces.append(_Piece(low, high, spec, each))

        def what_runs(piece: _Piece) -> tuple[object, ...]:
            of = piece.of.min_bytes
            return piece.spec, of if of in buckets or piece.spec is None else None

        return tuple(self._made(list(alike)) for _, alike in itertools.groupby(pieces, key=what_runs))

    def saves(self, spec: Spec, nbytes: int, of: Spec) -> bool:
        """Whether `spec`, run by XLA's collectives, saves enough of our executor's time for `of`."""
        least = self.least_gain(spec, nbytes, of)
        return self.by_xla.seconds(spec, nbytes) < (1 - least) * self.own.seconds(of, nbytes)

    def least_gain(self, spec: Spec, nbytes: int, of: Spec) -> float:
        """The share of our executor's time for `of` that `spec`, run by XLA's collectives, must save."""
        own, by_xla = self.own, self.by_xla
        if own.has_given_gain or not own.timed or not by_xla.timed:
            return own.min_gain
        schedule: Schedule | None = None if spec.kind == "lax" else by_xla.schedule(spec)
        return max(own.min_gain, by_xla.timed.margin_over(schedule, nbytes, own.timed, own.schedule(of)))

    @cached_property
    def _choices(self) -> list[tuple[int, int | None, Spec | None]]:
        """First and last bytes of each range between timed sizes, and the schedule that XLA's collectives run there.

        The schedule is None if our executor stays. Our executor stays beyond the largest timed size if times do not yet
        grow with the bytes.
        """
        assert self.own.timed
        sizes, last = self.own.timed.sizes, self.own.timed.sizes[-1]
        found: list[tuple[int, int | None, Spec | None]] = []
        lows = [0, *sizes[1:], *([] if self._reaches(last + 1) else [last + 1])]
        for low, high in zip(lows, [*lows[1:], None], strict=True):
            about = sizes[:2] if low == 0 else sizes[-2:] if high is None or low >= last else (low, high)
            best = choose(self.by_xla, min(last, self._middle(low, high)))
            gains = low <= last and all(self.saves(best, size, choose(self.own, size)) for size in about)
            found.append((low, None if high is None else high - 1, best if gains else None))
        return found

    def _reaches(self, nbytes: int) -> bool:
        return self.own.reaches(nbytes) and self.by_xla.reaches(nbytes)

    def _middle(self, low: int, high: int | None) -> int:
        """A size in the range, within the timed sizes if the range overlaps them."""
        assert self.own.timed
        first, last = self.own.timed.sizes[0], self.own.timed.sizes[-1]
        low = max(low, first) if high is None or high >= first else low
        high = max(low, last) if high is None else high
        return max(low, min(high, round(math.sqrt(max(1, low) * max(1, high)))))

    def _made(self, alike: Sequence[_Piece]) -> Entry:
        """The entry of neighbouring pieces that run the same schedule, with the other executor's alternatives."""
        low, _, spec, of = alike[0]
        high = alike[-1].high
        at = of.predicted.reference_bytes if (of.min_bytes, of.max_bytes) == (low, high) else self._middle(low, high)
        if spec is not None:
            return self._with_rows(entry(self.by_xla, low, high, at, spec), self.own)
        if (of.min_bytes, of.max_bytes) != (low, high):
            of = entry(self.own, low, high, at, of.schedule).model_copy(update={"selector": of.selector})
        return self._with_rows(of, self.by_xla)

    def _with_rows(self, made: Entry, other: Setting) -> Entry:
        """Adds the other executor's alternatives to the entry."""
        at = made.predicted.reference_bytes
        theirs = entry(other, made.min_bytes, made.max_bytes, at, choose(other, at))
        [chosen] = [row for row in made.alternatives if row.verdict == "chosen"]
        base = chosen.seconds / (1 - chosen.gain) if chosen.gain < 1 else 0.0

        left = "below_threshold" if self._reaches(at) else "not_timed"

        def judged(row: Alternative) -> Alternative:
            verdict = "slower" if row.seconds >= chosen.seconds else left
            gain = 1 - row.seconds / base if base > 0 else 0.0
            return row.model_copy(update={"verdict": verdict, "gain": significant(gain)})

        rows = [judged(row) for row in theirs.alternatives if row.verdict not in ("ideal_delay", "too_many_ports")]
        names = {(row.schedule, row.executor) for row in made.alternatives}
        more = sorted((row for row in rows if (row.schedule, row.executor) not in names), key=lambda row: row.seconds)
        more = more[: MAX_ALTERNATIVES - len(made.alternatives)]
        bound = min(made.predicted.lower_bound, theirs.predicted.lower_bound)
        predicted = made.predicted.model_copy(update={"lower_bound": bound})
        return made.model_copy(update={"alternatives": (*made.alternatives, *more), "predicted": predicted})
