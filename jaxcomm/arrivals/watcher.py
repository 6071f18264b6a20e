"""The thread that looks for calls of this process that have been open for longer than the deadline."""

from __future__ import annotations

import json
import os
import threading
import time
from functools import partial
from typing import Any, Final, NamedTuple

from jaxcomm import ffi
from jaxcomm.arrivals import deadline_error, records, rows
from jaxcomm.arrivals.deadline_error import Finding, OpenCall
from jaxcomm.arrivals.exchange import Exchange
from jaxcomm.arrivals.records import Rank
from jaxcomm.arrivals.rows import ArrivalsRow
from jaxcomm.environment import EXIT_AT_DEADLINE, host_name, is_on
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say, say_once

EXIT_CODE: Final = 75  # exit code at the deadline; EX_TEMPFAIL of sysexits.h, which means: try again

_LOOK_S: Final = 0.2  # time between two searches for overdue calls
_SETTLE_S: Final = 0.4  # time after the deadline in which the last rank may still arrive
_READ_S: Final = 0.25  # time limit for the store's answer
_SILENCE_S: Final = 2.5  # a process that publishes no row for this time counts as not running
_GRACE_S: Final = 2.5  # time in which the other processes read an announcement before this process ends
_LATER_S: Final = 1.5  # extra wait of process 0, the usual server of the store; without a store, JAX ends all processes
_MOST_KEPT: Final = 16  # maximum number of failed calls that are kept


class _NumberedCall(NamedTuple):
    """Identifies a call in all processes: the key of its site, and its number."""

    key: str
    number: int


class _OverdueCall(NamedTuple):
    """An announcement: a call, its error's text and record, and its entry for dumps, without the call's start time."""

    key: str
    number: int
    text: str
    record: dict[str, Any]
    dumped: dict[str, Any]


class Watcher:
    """Logs the culprit if calls are not complete at the deadline, with one line for all calls that are open then."""

    def __init__(self, process: int, exchange: Exchange | None) -> None:
        """Takes the number of this process, and the exchange, or None in a job of one process."""
        self._process = process
        self._exchange = exchange
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxcomm arrivals", daemon=True)
        self._beats: dict[int, int] | None = None  # each process's beat, read shortly before the deadline
        self._logged: list[_NumberedCall] = []
        self._reported: set[_NumberedCall] = set()  # calls that were open at this process's latest report
        self._failed: list[dict[str, Any]] = []
        self._announced: str | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(2 * _LOOK_S)

    def failures(self, key: str) -> int:
        """The number of a site's calls that were logged as open at the deadline."""
        return sum(each.key == key for each in self._logged)

    def calls(self) -> dict[str, list[dict[str, Any]]]:
        """The calls that were logged as open at the deadline, and the latest call of each device, for dumps."""
        now_us, devices = time.monotonic() * 1e6, []
        for process, row in self._rows().items():
            for device, latest in row.latest.items():
                number = row.sites[latest.key][device].arrived if latest.key in row.sites else 0
                place = {"process": process, "device": device, "id": _id(_NumberedCall(latest.key, number))}
                times = {"at_us": now_us - 1e6 * latest.for_s, "is_open": latest.is_open}
                devices.append({**place, **times, "call": latest.text})
        return {"calls": [dict(call) for call in self._failed], "devices": devices}

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self._look()
            except JaxcommError as error:
                say_once(f"the arrivals at collectives cannot be read: {error}")

    def _look(self) -> None:
        deadline_s, open_s = ffi.deadline(), records.open_s()
        if open_s < deadline_s - min(_SILENCE_S, deadline_s / 2):
            self._beats = None
        elif self._beats is None:
            rows_now = self._rows() if self._exchange is None or self._exchange.read(_READ_S) else {}
            self._beats = {process: row.beat for process, row in rows_now.items()}
        self._repeat_announcement()
        if open_s >= deadline_s + _SETTLE_S:
            self._report(deadline_s)

    def _report(self, deadline_s: float) -> None:
        """Logs the culprit of one overdue call: the longest open call with missing ranks, or else the longest open one.

        Other calls that are open at the same time are not logged: they wait for the same ranks, or for this call.
        """
        open_calls = self._open_calls()
        overdue = [each for each in open_calls if each.waited_s >= deadline_s and _numbered(each) not in self._reported]
        if not overdue:
            return
        self._reported = {*map(_numbered, open_calls)}
        overdue.sort(key=lambda each: -each.waited_s)
        answers = self._exchange is None or self._exchange.read(_READ_S)
        known = self._rows() | {self._process: self._own_row()}
        silent = {process for process, row in known.items() if (self._beats or {}).get(process) == row.beat}
        find = partial(deadline_error.find, rows=known, silent=silent) if answers else deadline_error.without_rows
        found = [(each, find(each)) for each in overdue]
        call, finding = next((pair for pair in found if pair[1].record["missing"]), found[0])
        if _numbered(call) in self._logged:
            return
        overdue_call = _OverdueCall(call.key, call.number, finding.text, finding.record, _dumped(call, finding))
        if self._exchange:
            self._exchange.announce(json.dumps(overdue_call))
        self._log(overdue_call)

    def _repeat_announcement(self) -> None:
        """Logs what another process has announced, unless this process has logged the same call."""
        if self._exchange is None or (announced := self._exchange.overdue) in (None, self._announced):
            return
        self._announced = announced
        try:
            call = _OverdueCall(*json.loads(announced))
        except (TypeError, ValueError) as error:
            raise JaxcommError(f"a process has announced an invalid call: {error}") from error
        if _NumberedCall(call.key, call.number) not in self._logged:
            self._log(call)

    def _log(self, call: _OverdueCall) -> None:
        self._logged.append(_NumberedCall(call.key, call.number))
        self._failed.append({**call.dumped, "at_us": (time.monotonic() - call.dumped["took_s"]) * 1e6})
        del self._failed[:-_MOST_KEPT]
        ends = is_on(EXIT_AT_DEADLINE)
        say(call.text + (f"\n  {EXIT_AT_DEADLINE} is on: this process ends." if ends else ""))
        ffi.add_failure(call.text, call.record)
        if ends:
            time.sleep(_GRACE_S + _LATER_S * (self._process == 0))
            from jaxcomm import dump

            dump.finish()
            os._exit(EXIT_CODE)

    def _open_calls(self) -> list[OpenCall]:
        found = []
        for key, devices in records.read(most_calls=0).items():
            site = records.site(key)
            for device, calls in devices.items():
                rank = Rank(self._process, device)
                if site and calls.is_open and site.group_of(rank):
                    found.append(OpenCall(key, site, rank, calls.arrived, calls.for_s))
        return found

    def _rows(self) -> dict[int, ArrivalsRow]:
        return self._exchange.rows if self._exchange else {self._process: self._own_row()}

    def _own_row(self) -> ArrivalsRow:
        return rows.make(self._process, host_name(), 0, has_ended=False)


def _numbered(call: OpenCall) -> _NumberedCall:
    return _NumberedCall(call.key, call.number)


def _dumped(call: OpenCall, finding: Finding) -> dict[str, Any]:
    """The call's entry for dumps, in the format of `profile.dump_file`."""
    group = call.site.group_of(call.rank)
    return {
        "name": call.site.name,
        "axes": call.site.axes,
        "plan": call.site.plan,
        "ranks": len(group),
        "bytes": call.site.bytes,
        "id": _id(_numbered(call)),
        "number": call.number,
        "took_s": call.waited_s,
        "error": finding.text,
        "arrivals": [None if since_s is None else call.waited_s - since_s for since_s in finding.since_s],
        "processes": [rank.process for rank in group] if len({rank.process for rank in group}) > 1 else [],
    }


def _id(call: _NumberedCall) -> int:
    """A number that identifies the call, and is the same in all processes."""
    return (int(call.key) + call.number) % 2**64
