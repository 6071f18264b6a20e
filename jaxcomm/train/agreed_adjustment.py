"""One result for all processes of a job: each sends its statistics to the first one, whose result all get."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax

from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError
from jaxcomm.measure.links import measure_links
from jaxcomm.measure.rack_links import RackLinks, Racks, rack_links
from jaxcomm.train.recent_averages import RecentAverages

_MEASUREMENTS: Final = 1 << 21  # they have numbers from here on; those of auto_plan have lower ones
_MISSING: Final = "process {} has not come to train.adjust_groups"


class MeasuredRacks(NamedTuple):
    """The links, None where all ranks are on one host; when they were measured, and how long it took."""

    links: RackLinks | None
    at_s: float
    took_s: float


def agree(
    own: RecentAverages,
    racks: Racks,
    is_due: Callable[[RecentAverages], bool],
    adjust: Callable[[RecentAverages, MeasuredRacks | None], str],
) -> str:
    """Returns in all processes the result of `adjust` in the first one. All call it.

    Args:
      own: the record of this process.
      racks: as they are known.
      is_due: whether all measure the links, given what all have seen; called in the first process.
      adjust: takes that, and the links if they were measured; called in the first process.

    Raises:
      JaxcommError: a process has not called it within five minutes, or is gone; or it failed in the first one, which
        raises what it failed of.
    """
    process, processes = jax.process_index(), jax.process_count()
    number = next(_numbers())
    key = f"groups/{number}"
    store.publish(f"{key}/seen/{process}", own.text())
    seen = own

    def look() -> bool:
        nonlocal seen
        texts = [store.lookup(f"{key}/seen/{each}", _MISSING.format(each), each) for each in range(processes)]
        store.remove(f"groups/{number - 1}")  # all have read it
        seen = RecentAverages.merge(texts)
        return is_due(seen)

    if process == 0:
        _publish(f"{key}/measure", look)
    due = _lookup(f"{key}/measure")
    if process == 0:
        _publish(f"{key}/adjustment", lambda: adjust(seen, _measure(racks, number) if due else None))
    elif due:
        _measure(racks, number)
    found: str = _lookup(f"{key}/adjustment")
    return found


def _publish(key: str, find: Callable[[], bool | str]) -> None:
    """Publishes what `find` returns, or its error, which is raised."""
    try:
        found = find()
    except Exception as error:
        store.publish(key, json.dumps({"error": str(error)}))
        raise
    store.publish(key, json.dumps({"found": found}))


def _lookup(key: str) -> Any:
    """The result that the first process has published."""
    published = json.loads(store.lookup(key, _MISSING.format(0), 0))
    if "error" in published:
        raise JaxcommError(f"train.adjust_groups failed in process 0: {published['error']}")
    return published["found"]


@store.cached
def _numbers() -> Iterator[int]:
    return itertools.count()


def _measure(racks: Sequence[Sequence[int]], number: int) -> MeasuredRacks:
    start = time.monotonic()
    links = rack_links(measure_links(_MEASUREMENTS + number), racks)
    return MeasuredRacks(links, time.monotonic(), time.monotonic() - start)
