"""One result for all processes of a job: each tells the first one what it has seen, and all get what that one finds."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import jax

from jaxcomm.distributed import store
from jaxcomm.measure.processes import measure_links
from jaxcomm.measure.rack_links import RackLinks, Racks, rack_links
from jaxcomm.train.seen_averages import SeenAverages

_MISSING: Final = "process {} has not come to train.adjust_groups"


class MeasuredRacks(NamedTuple):
    """The links, None where all ranks are on one host; when they were measured, and how long it took."""

    links: RackLinks | None
    at_s: float
    took_s: float


def agree(
    own: SeenAverages,
    racks: Racks,
    is_due: Callable[[SeenAverages], bool],
    adjust: Callable[[SeenAverages, MeasuredRacks | None], str],
) -> str:
    """What `adjust` returns in the first process, in all of them. All call it.

    Args:
      own: what this process has seen.
      racks: as they are known.
      is_due: whether all measure the links, given what all have seen; called in the first process.
      adjust: takes that, and the links if they were measured; called in the first process.

    Raises:
      JaxcommError: a process has not called it within five minutes, or is gone.
    """
    process, processes = jax.process_index(), jax.process_count()
    number = next(_numbers())
    key = f"groups/{number}"
    store.publish(f"{key}/seen/{process}", own.text())
    seen = own
    if process == 0:
        texts = [store.lookup(f"{key}/seen/{each}", _MISSING.format(each)) for each in range(processes)]
        store.remove(f"groups/{number - 1}")  # all have read it
        seen = SeenAverages.merge(texts)
        store.publish(f"{key}/measure", json.dumps(is_due(seen)))
    measured = _measure(racks) if json.loads(store.lookup(f"{key}/measure", _MISSING.format(0))) else None
    if process == 0:
        store.publish(f"{key}/adjustment", adjust(seen, measured))
    return store.lookup(f"{key}/adjustment", _MISSING.format(0))


@store.cached
def _numbers() -> Iterator[int]:
    return itertools.count()


def _measure(racks: Sequence[Sequence[int]]) -> MeasuredRacks:
    start = time.monotonic()
    links = rack_links(measure_links(), racks)
    return MeasuredRacks(links, time.monotonic(), time.monotonic() - start)
