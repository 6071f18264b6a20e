"""The records of `jaxcomm.stats()` for collectives that the core does not run.

No common clock is needed. A collective ends on all ranks at about the same time, so the rank that took the least time
from its own arrival to the end arrived last, and the others arrived earlier by the difference. Processes publish a
sample of their calls; the totals of all calls are the sample's means times the number of calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from jaxcomm.arrivals import records
from jaxcomm.arrivals.records import DeviceCalls, Rank, Recorded, WatchedSite

_MOST: Final = 256  # maximum number of calls in a record's `arrivals`


class _Label(NamedTuple):
    """A label of call sites. Sites with the same label share a record, as the sites of the core do."""

    name: str
    axes: str
    plan: str
    ranks: int
    bytes: int


class _Total:
    """The sums over all calls with one label."""

    def __init__(self, ranks: int) -> None:
        self.calls = 0
        self.failed = 0
        self.transfer_s = 0.0
        self.wait_s = [0.0] * ranks
        self.last = [0.0] * ranks
        self.arrivals: deque[list[float]] = deque(maxlen=_MOST)
        self.after_arrival_s: deque[float] = deque(maxlen=_MOST)

    def add(self, took_s: list[list[float]], calls: int) -> None:
        """Adds `calls` calls. `took_s`: each rank's seconds from arrival to end, for each call of the sample."""
        self.calls += calls
        weight = calls / len(took_s) if took_s else 0.0
        for each in took_s:
            longest, after = max(each), min(each)
            self.arrivals.append([longest - seconds for seconds in each])
            self.after_arrival_s.append(after)
            self.transfer_s += weight * after
            self.last[each.index(after)] += weight
            self.wait_s = [total + weight * (own - after) for total, own in zip(self.wait_s, each, strict=True)]

    def record(self, label: _Label) -> dict[str, Any]:
        """The record for `jaxcomm.stats()`."""
        return {
            **label._asdict(),
            "calls": self.calls,
            "failed": self.failed,
            "transfer_s": self.transfer_s,
            "wait_s": [*self.wait_s],
            "late": [round(count) for count in self.last],
            "arrivals": [*self.arrivals],
            "after_arrival_s": [*self.after_arrival_s],
            "early_bytes_share": 0.0,
            "lost_bytes": 0,
            "early_calls": 0,
            "lost_rail_calls": 0,
            "work_s": [],
            "spans": [],
        }


class _Counted(NamedTuple):
    """A group of a site, by its number. A site's groups are counted separately."""

    key: str
    group: int


class Totals:
    """The records of all sites since the start or the last reset. Not thread-safe."""

    def __init__(self, process: int, failures: Callable[[str], int]) -> None:
        """Takes the number of this process, and a function that maps a site's key to the number of failed calls."""
        self._process = process
        self._failures = failures
        self._totals: dict[_Label, _Total] = {}
        self._ended: dict[_Counted, int] = {}  # number of calls that have been counted
        self._seen: dict[_Counted, int] = {}  # the number of the latest sampled call whose times have been added
        self._failed: dict[str, int] = {}  # number of failed calls that have been counted

    def reset(self, own: Recorded) -> None:
        """Forgets all calls so far."""
        self.update(own, {})
        self._totals.clear()
        for place in self._seen:
            self._seen[place] = max(calls.arrived for calls in own[place.key].values())

    def update(self, own: Recorded, others: Mapping[int, Recorded]) -> list[dict[str, Any]]:
        """Adds the calls since the last update, and returns all records.

        Args:
          own: the recorded calls of this process.
          others: the calls that the other processes have published, by process.
        """
        for key, devices in own.items():
            site = records.site(key)
            for number, group in enumerate(site.groups if site else ()):
                mine = [rank.device for rank in group if rank.process == self._process and rank.device in devices]
                if site and mine:
                    ended = max(devices[device].ended for device in mine)
                    self._add(_Counted(key, number), site, group, ended, {self._process: own, **others})
        return [total.record(label) for label, total in self._totals.items()]

    def _add(
        self,
        place: _Counted,
        site: WatchedSite,
        group: tuple[Rank, ...],
        ended: int,
        known: Mapping[int, Recorded],
    ) -> None:
        label = _Label(site.name, site.axes, site.plan, len(group), site.bytes)
        total = self._totals.setdefault(label, _Total(len(group)))
        failed = self._failures(place.key)
        total.failed += failed - self._failed.get(place.key, 0)
        self._failed[place.key] = failed
        calls = [_calls(rank, place.key, known) for rank in group]
        common = set.intersection(*({*each.took_s} if each else set() for each in calls))
        numbers = sorted(number for number in common if number > self._seen.get(place, 0))
        took_s = [[each.took_s[number] for each in calls if each] for number in numbers]
        total.add(took_s, ended - self._ended.get(place, 0))
        self._ended[place] = ended
        self._seen[place] = max([*numbers, self._seen.get(place, 0)])


def _calls(rank: Rank, key: str, known: Mapping[int, Recorded]) -> DeviceCalls | None:
    return known.get(rank.process, {}).get(key, {}).get(rank.device)
