"""Compares the dumps of a job's processes: where each rank was when the first call failed, and the likely culprit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.profile.dump_file import DeviceCall, Dump, DumpedCall
from jaxcomm.profile.run_file import GoneProcess
from jaxcomm.report.tables import bytes_text, seconds_text

_NO_CALL: Final = "no call"


class RankPlace(NamedTuple):
    """Where a rank of the failed call was.

    Attributes:
      rank: the rank's number in its group.
      process: the rank's process.
      host: the process's host, or None if the process wrote no dump.
      arrived_s: seconds from the first rank's arrival to this rank's arrival; None if no dump has the arrival.
      is_missing: whether the rank had not arrived when the call failed.
      place: the call in which the rank was, in words.
    """

    rank: int
    process: int
    host: str | None
    arrived_s: float | None
    is_missing: bool
    place: str


class Culprit(NamedTuple):
    """The ranks and processes that most likely caused the failure, and the reason in words."""

    ranks: tuple[int, ...]
    processes: tuple[int, ...]
    why: str


class Incident(NamedTuple):
    """The first failure of a job.

    Attributes:
      dumps: all dumps, in the order in which they were written.
      places: one item per rank of the failed call; empty if the first failure is not the failure of a call.
      culprit: None if the dumps do not show one.
    """

    dumps: Sequence[Dump]
    places: Sequence[RankPlace]
    culprit: Culprit | None

    @property
    def first(self) -> Dump:
        """The dump of the first failure."""
        return self.dumps[0]


def incident(dumps: Sequence[Dump]) -> Incident:
    """The first failure in one or more dumps. Times of several hosts are compared by the hosts' clocks."""
    ordered = sorted(dumps, key=lambda dump: dump.written)
    own: dict[int, Dump] = {}  # by process: the process's first dump
    for dump in ordered:
        own.setdefault(dump.process, dump)
    places = [*_places(ordered[0], own)]
    return Incident(ordered, places, _culprit(ordered[0], own, places))


def call_text(call: DumpedCall) -> str:
    """A call in words, such as "psum #412 over 'data' (16 MiB, plan 3f9a01c2)"."""
    return f"{call.name} #{call.number} over '{call.axes}' ({bytes_text(call.bytes)}, plan {call.plan})"


def _places(first: Dump, own: Mapping[int, Dump]) -> Iterator[RankPlace]:
    if (failed := first.failed) is None:
        return
    processes = failed.processes or [first.process] * len(failed.arrivals)
    arrivals = [_arrival(rank, process, failed, first, own) for rank, process in enumerate(processes)]
    begin = min((at for at in arrivals if at is not None), default=0.0)
    for rank, process in enumerate(processes):
        dump, at = own.get(process), arrivals[rank]
        yield RankPlace(
            rank,
            process,
            dump.host if dump else None,
            None if at is None else at - begin,
            failed.arrivals[rank] is None,
            _place(process, failed, own, has_arrived=at is not None),
        )


def _arrival(rank: int, process: int, failed: DumpedCall, first: Dump, own: Mapping[int, Dump]) -> float | None:
    """A rank's arrival in seconds since 1970, from the dump of its own process or else from the first dump."""
    for dump in (own.get(process), first):
        same = dump and (failed if dump is first else _same(dump, failed))
        if dump and same and rank < len(same.arrivals) and (at := same.arrivals[rank]) is not None:
            return dump.clock_s(same.at_s + at)
    return None


def _same(dump: Dump, failed: DumpedCall) -> DumpedCall | None:
    """The failed call in the dump of another process; None if the dump lacks this call."""
    return next((call for call in dump.calls if call.id == failed.id and call.axes == failed.axes), None)


def _place(process: int, failed: DumpedCall, own: Mapping[int, Dump], *, has_arrived: bool) -> str:
    if dump := own.get(process):
        if (other := dump.failed) and other.id != failed.id:
            return call_text(other)
        return "this call" if has_arrived else _NO_CALL
    if not (last := _last_call(process, own)):
        return "no dump, and no call is known"
    dump, call = last
    if call.id == failed.id:
        return "no dump; this call"
    ago = seconds_text(dump.at_s - call.at_s)
    return f"no dump; in {call.call}, for {ago}" if call.is_open else f"no dump; last in {call.call}, {ago} before"


def _last_call(process: int, own: Mapping[int, Dump]) -> tuple[Dump, DeviceCall] | None:
    """The latest call of a process in any dump, and the dump that has this call; None if no dump has such a call."""
    found = [(dump, call) for dump in own.values() for call in dump.devices if call.process == process]
    return max(found, key=lambda each: each[0].clock_s(each[1].at_s), default=None)


def _culprit(first: Dump, own: Mapping[int, Dump], places: Sequence[RankPlace]) -> Culprit | None:
    return _gone(own, places) or _different(own, places) or _missing(first, own, places)


def _gone(own: Mapping[int, Dump], places: Sequence[RankPlace]) -> Culprit | None:
    """Among the processes that ended without a dump, the first that was killed or, if none was, the first that left."""
    found: list[tuple[float, GoneProcess]] = [
        (dump.clock_s(gone.at_s), gone) for dump in own.values() for gone in dump.gone if gone.process not in own
    ]
    if not found:
        return None
    _, gone = min(found, key=lambda each: (each[1].has_left, each[0]))
    ranks = tuple(place.rank for place in places if place.process == gone.process)
    return Culprit(ranks, (gone.process,), gone.why.partition("\n")[0].rstrip("."))


def _different(own: Mapping[int, Dump], places: Sequence[RankPlace]) -> Culprit | None:
    """The ranks whose call the fewest ranks made; None if no dump has calls that differ."""
    calls = {rank: call for dump in own.values() for rank, call in dump.error.calls}
    if not calls:
        return None
    count = Counter(calls.values())
    rarest = min(count.values())
    ranks = tuple(rank for rank, call in sorted(calls.items()) if count[call] == rarest)
    processes = tuple(sorted({place.process for place in places if place.rank in ranks}))
    words = "; ".join(f"rank {rank} is in {calls[rank]}" for rank in ranks)
    return Culprit(ranks, processes, f"the ranks make different calls: {words}")


def _missing(first: Dump, own: Mapping[int, Dump], places: Sequence[RankPlace]) -> Culprit | None:
    """The ranks that had not arrived when the call failed."""
    missing = [place for place in places if place.is_missing]
    if not missing:
        return None
    ranks, processes = (tuple(place.rank for place in missing), tuple(sorted({place.process for place in missing})))
    late = [place for place in missing if place.arrived_s is not None]
    if processes == (first.process,) and not (first.failed and first.failed.processes):
        why = "it had not arrived" if len(ranks) == 1 else "they had not arrived"
    elif late:
        why = f"it came {seconds_text(max(place.arrived_s or 0.0 for place in late))} after the first rank"
    elif elsewhere := [place for place in missing if place.process in own]:
        outside = elsewhere[0].place == _NO_CALL
        why = "it was in no call of jaxcomm" if outside else f"it was in another call: {elsewhere[0].place}"
    else:
        why = "it wrote no dump, so it hangs outside of jaxcomm's calls, or was killed with its host"
    return Culprit(ranks, processes, why)
