"""Errors for processes that have left or failed, and log lines for rails that are cut or restored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxcomm import ffi
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say

_QUIET_S = 60.0  # shortest time between two log lines on outages of a rail to a process


class ProcessGone(JaxcommError):
    """This process needs another process that has left the job or failed.

    Attributes:
      why: the error text of the connection to the process, such as "process 3 has left".
      has_left: true if the process ended by itself; false if it was killed, or its host does not respond.
    """

    def __init__(self, needed: str, why: str, has_left: bool) -> None:
        # cc/base/error_texts.h has the same cure.
        cure = (
            "all processes again; with JAX_ENABLE_RECOVERABILITY=1 and live_devices, the others go on, and it rejoins "
            "when started again"
        )
        super().__init__(f"{needed}: {why}.\n  Cure: start {cure}.")
        self.why, self.has_left = why, has_left


def require_processes(processes: Collection[int], needed: str) -> None:
    """Raises ProcessGone if one of these processes has left or failed. The error text begins with `needed`."""
    for record in ffi.gone():
        if record["process"] in processes:
            raise ProcessGone(needed, record["why"].splitlines()[0].rstrip("."), record["has_left"])


class RailTo(NamedTuple):
    """A rail to a process. `rail` is the rail's number in the core."""

    process: int
    rail: int


@dataclasses.dataclass
class _Outage:
    cuts: int
    since: float
    is_logged: bool = False


class Outages:
    """The rails that are cut now. For each rail to a process, logs at most one outage a minute."""

    def __init__(self, names: Sequence[str], down: Iterable[RailTo] = ()) -> None:
        """`names[i]` is the name of rail i. Rails in `down` were cut before the start and are already in the log."""
        self._names = names
        self._outages = {to: _Outage(1, time.monotonic(), is_logged=True) for to in down}
        self._quiet_until: dict[RailTo, float] = {}

    def update(self, cuts: Mapping[RailTo, int]) -> None:
        """Records which rails are cut, and how often. All other rails work, or lead to processes that have ended."""
        now = time.monotonic()
        before, self._outages = self._outages, {}
        for to, count in cuts.items():
            known = before.get(to)
            self._outages[to] = known if known is not None and known.cuts == count else _Outage(count, now)
        new = {
            to: outage
            for to, outage in self._outages.items()
            if not outage.is_logged and self._quiet_until.get(to, now) <= now
        }
        for rail in sorted({to.rail for to in new}):
            processes = sorted(to.process for to in new if to.rail == rail)
            cuts_so_far = max(outage.cuts for to, outage in new.items() if to.rail == rail)
            say(
                f"{self._words(rail, processes)} is cut{f' ({cuts_so_far} times so far)' * (cuts_so_far > 1)}; "
                "the other rails carry its part until it is back."
            )
        for to, outage in new.items():
            outage.is_logged = True
            self._quiet_until[to] = now + _QUIET_S

    def end(self, to: RailTo) -> None:
        """Records that a rail works again. Logs this if the outage was logged."""
        outage = self._outages.pop(to, None)
        if outage is not None and outage.is_logged:
            say(f"{self._words(to.rail, [to.process])} is back after {time.monotonic() - outage.since:.1f} s.")

    def _words(self, rail: int, processes: Sequence[int]) -> str:
        name = f"the rail {self._names[rail]}" if self._names[rail] else "the rail to the coordinator"
        return f"{name}, to process{'es' * (len(processes) > 1)} {', '.join(map(str, processes))},"
