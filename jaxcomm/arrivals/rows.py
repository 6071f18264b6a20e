"""The row that each process publishes about once a second: the progress of its devices, and its recent calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.arrivals import records
from jaxcomm.arrivals.records import DeviceCalls, Recorded
from jaxcomm.errors import JaxcommError

_MOST: Final = 64  # a row has at most _MOST // devices sites, or _LEAST_SITES if that is more
_MOST_CALLS: Final = 8  # maximum number of calls of a device at a site
_LEAST_SITES: Final = 8


class Latest(NamedTuple):
    """A device's latest call: the site's key, `call_text`, whether it is open, and seconds since it began or ended."""

    key: str
    text: str
    is_open: bool
    for_s: float


class ArrivalsRow(NamedTuple):
    """The row that a process has published.

    Attributes:
      process: the process.
      host: the name of its host.
      beat: the number of the row, from 1. If a process's beat stays the same, the process is not running.
      has_ended: whether the process has ended its program.
      latest: the latest call of each device.
      sites: the recorded calls of the sites with the latest calls.
    """

    process: int
    host: str
    beat: int
    has_ended: bool
    latest: dict[int, Latest]
    sites: Recorded


def make(process: int, host: str, beat: int, *, has_ended: bool) -> ArrivalsRow:
    """The present row of this process."""
    devices = max((len(each) for each in records.read(_LEAST_SITES, 0).values()), default=1)
    sites = records.read(max(_LEAST_SITES, _MOST // devices), _MOST_CALLS)
    return ArrivalsRow(process, host, beat, has_ended, _latest(sites), sites)


def to_json(row: ArrivalsRow) -> str:
    """The row as a text for `from_json`."""
    sites = {
        key: {
            device: [
                *(calls.arrived, calls.ended, int(calls.is_open), round(calls.for_s, 3)),
                [[number, round(seconds, 6)] for number, seconds in calls.took_s.items()],
            ]
            for device, calls in devices.items()
        }
        for key, devices in row.sites.items()
    }
    latest = {
        device: [each.key, each.text, int(each.is_open), round(each.for_s, 3)] for device, each in row.latest.items()
    }
    fields = row.process, row.host, row.beat, int(row.has_ended), latest, sites
    return json.dumps(fields, separators=(",", ":"))


def from_json(text: str) -> ArrivalsRow:
    """Reads a row that another process has published.

    Raises:
      JaxcommError: the text is not a row.
    """
    try:
        process, host, beat, has_ended, latest, sites = json.loads(text)
        return ArrivalsRow(
            int(process),
            str(host),
            int(beat),
            bool(has_ended),
            {int(device): Latest(str(key), str(call), bool(is_open), float(for_s))
             for device, (key, call, is_open, for_s) in latest.items()},
            {
                str(key): {
                    int(device): DeviceCalls(
                        int(arrived), int(ended), bool(is_open), float(for_s), {int(n): float(s) for n, s in calls}
                    )
                    for device, (arrived, ended, is_open, for_s, calls) in devices.items()
                }
                for key, devices in sites.items()
            },
        )  # fmt: skip
    except (AttributeError, TypeError, ValueError) as error:
        raise JaxcommError(f"a process has published an invalid row of arrivals: {error}") from error


def _latest(sites: Mapping[str, Mapping[int, DeviceCalls]]) -> dict[int, Latest]:
    found: dict[int, Latest] = {}
    for key, devices in sites.items():
        for device, calls in devices.items():
            if device not in found or calls.for_s < found[device].for_s:
                found[device] = Latest(key, call_text(key, calls.arrived), calls.is_open, calls.for_s)
    return found


def call_text(key: str, number: int) -> str:
    """A call of this process in words: "psum #412 over 'data' at train.py:57"."""
    site = records.site(key)
    if site is None:
        return ""
    return f"{site.name} #{number} over '{site.axes}'" + (f" at {site.line}" if site.line else "")
