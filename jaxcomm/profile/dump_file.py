"""The file that a process writes when a call fails, if JAXCOMM_DUMP is set: what its ranks were doing."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.files import Count, Seconds, Text, Value
from jaxcomm.profile.run_file import Generation, GoneProcess, RunPlan, RunRail

FORMAT: Final = "jaxcomm-dump"
VERSION: Final = 1

_Id = Annotated[int, Field(ge=0, lt=2**64, strict=True)]
_Offset = Annotated[float, Field(ge=-1e9, le=1e9, strict=True, allow_inf_nan=False)]
_LongText = Annotated[str, Field(max_length=1 << 16)]


class Failure(Value):
    """The error of the failed call.

    The lists are copies of the fields of a `DeadlineError` or `MismatchError`. A list is empty if the error has no such
    field. `calls` has two ranks that made different calls, each with its call in words.
    """

    text: _LongText
    kind: Text
    missing: list[Count] = []
    waiting: list[Count] = []
    calls: list[tuple[Count, _LongText]] = []


class DumpedCall(Value):
    """A call that ended or failed.

    `arrivals` has for each rank the seconds from `at_s` to the rank's arrival, or None if the rank had not arrived.
    `took_s` is the time from `at_s` to the end. If the call failed, `error` is its error and, between processes,
    `processes` has the process of each rank. `id` is the same in all processes, and 0 for calls within a process;
    `number` counts the calls of this process.
    """

    name: Text
    axes: Text
    plan: Text
    ranks: Count
    bytes: Count
    id: _Id
    number: Count
    at_s: Seconds
    arrivals: list[_Offset | None]
    took_s: Seconds
    processes: list[Count] = []
    error: _LongText = ""


class DeviceCall(Value):
    """The latest call that a device has joined, as far as this process knows; `at_s` is the device's arrival."""

    process: Count
    device: Count
    id: _Id
    at_s: Seconds
    is_open: bool
    call: _LongText


class Dump(Value):
    """The file's content. All times are seconds since the run of this process began; the file was written at `at_s`."""

    format: Literal["jaxcomm-dump"]
    version: Literal[1]
    written: AwareDatetime
    at_s: Seconds
    process: Count
    processes: Count
    host: Text
    pid: Count
    error: Failure
    calls: list[DumpedCall]
    devices: list[DeviceCall]
    rails: list[RunRail] = []
    gone: list[GoneProcess] = []
    generations: list[Generation] = []
    plans: list[RunPlan] = []

    def clock_s(self, at_s: float) -> float:
        """Converts a time of this process to seconds since 1970, by the clock of its host."""
        return self.written.timestamp() - self.at_s + at_s

    @property
    def failed(self) -> DumpedCall | None:
        """The failed call; None if something other than a call failed, such as the loading of a step."""
        return next((call for call in reversed(self.calls) if call.error == self.error.text), None)


KIND: Final = files.Kind("dump", VERSION, Dump, ProfileError, "JAXCOMM_DUMP")
_MOST_BYTES: Final = 64 << 20


def load(path: str) -> Dump:
    """A process's dump.

    Raises:
      ProfileError: the file cannot be read, or is not a dump.
    """
    return KIND.validate(_document(path), path)


def is_dump(path: str) -> bool:
    """Whether a file says that it is a dump.

    Raises:
      ProfileError: the file cannot be read, or is not JSON.
    """
    document = _document(path)
    return isinstance(document, dict) and document.get("format") == FORMAT


def _document(path: str) -> Any:
    return KIND.parse(files.read(path, _MOST_BYTES, ProfileError), path)
