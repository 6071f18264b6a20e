"""Finds one result for all processes of a job: the first process gets all statistics and publishes its result."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax

from jaxcomm import ffi
from jaxcomm.distributed import store
from jaxcomm.distributed.connect.members import connected, on_change
from jaxcomm.distributed.connect.membership import Membership
from jaxcomm.errors import JaxcommError
from jaxcomm.measure.links import measure_links
from jaxcomm.measure.rack_links import RackLinks, Racks, rack_links
from jaxcomm.train.recent_averages import RecentAverages

_MEASUREMENTS: Final = 1 << 21  # number of the first measurement; auto_plan uses other numbers
_MISSING: Final = "process {} has not called train.adjust_groups"
_calls_before: dict[int, int] = {}  # by number of ranks: calls of the site with the largest sums in earlier generations


class MeasuredRacks(NamedTuple):
    """The links (None if all ranks are on one host), the time of their measurement, and how long it took."""

    links: RackLinks | None
    at_s: float
    took_s: float


def agree(
    own: RecentAverages,
    racks: Racks,
    is_due: Callable[[RecentAverages], bool],
    adjust: Callable[[RecentAverages, MeasuredRacks | None], str],
) -> str:
    """Runs `adjust` in the first process, and returns its result in all processes. All members call this function.

    Args:
      own: the record of this process.
      racks: the racks, as far as they are known.
      is_due: runs in the first process. Takes the records of all processes; returns whether to measure the links.
      adjust: runs in the first process. Takes the records of all processes, and the links if they were measured.

    Raises:
      JaxcommError: a process has not called this function within five minutes, or has ended; or the first process
        failed. The first process then raises its original error.
    """
    on_change(_count_calls)
    before = _calls_before.get(own.work_s.shape[1], 0)
    own = replace(own, calls=own.calls - before if own.calls >= before else own.calls)  # `reset_stats` clears `calls`
    process, members = jax.process_index(), tuple(connected().incarnations)
    first = members[0]
    number = next(_numbers())
    key = f"groups/{number}"
    store.publish(f"{key}/seen/{process}", own.text())
    seen = own

    def look() -> bool:
        nonlocal seen
        texts = [store.lookup(f"{key}/seen/{each}", _MISSING.format(each), each) for each in members]
        store.remove(f"groups/{number - 1}")  # every process is in this call, so it has read the previous call's keys
        seen = RecentAverages.merge(texts)
        return is_due(seen)

    if process == first:
        _publish(f"{key}/measure", look)
    due = _lookup(f"{key}/measure", first)
    if process == first:
        _publish(f"{key}/adjustment", lambda: adjust(seen, _measure(racks, number) if due else None))
    elif due:
        _measure(racks, number)
    found: str = _lookup(f"{key}/adjustment", first)
    return found


def _count_calls(membership: Membership) -> None:
    """Records the calls before a new generation, because a process that joins counts calls from 0."""
    sites = [site for site in ffi.sites() if site["plan"] == "groups"]
    _calls_before.update({site["ranks"]: site["calls"] for site in sorted(sites, key=lambda site: site["bytes"])})


def _publish(key: str, find: Callable[[], bool | str]) -> None:
    """Publishes the result of `find`. If `find` fails, publishes the error and raises it."""
    try:
        found = find()
    except Exception as error:
        store.publish(key, json.dumps({"error": str(error)}))
        raise
    store.publish(key, json.dumps({"found": found}))


def _lookup(key: str, first: int) -> Any:
    """The result that the first process has published."""
    published = json.loads(store.lookup(key, _MISSING.format(first), first))
    if "error" in published:
        raise JaxcommError(f"train.adjust_groups failed in process {first}: {published['error']}")
    return published["found"]


@store.cached
def _numbers() -> Iterator[int]:
    return itertools.count()


def _measure(racks: Sequence[Sequence[int]], number: int) -> MeasuredRacks:
    start = time.monotonic()
    links = rack_links(measure_links(_MEASUREMENTS + number), racks)
    return MeasuredRacks(links, time.monotonic(), time.monotonic() - start)
