"""The calls of each device at each call site, as the cores of this process have recorded them."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, Final, NamedTuple

import jax

from jaxcomm.ffi.core import Core
from jaxcomm.ffi.cpu import CPU

ARRIVE: Final = "jaxcomm_arrive"
END: Final = "jaxcomm_end"
_LARGEST: Final = 4096  # maximum number of sites that a core records, as in cc/ffi/arrivals.h


class Rank(NamedTuple):
    """A rank of a call: its process, and JAX's id of its device."""

    process: int
    device: int


class WatchedSite(NamedTuple):
    """A call site whose arrivals are recorded. All processes have the same description.

    Attributes:
      name: the operation, and the bucket if the call has one.
      axes: names of the axes, separated by commas.
      plan: the first characters of the plan's hash, or "lax" without a plan.
      bytes: number of bytes in a rank's operands.
      line: the place of the call in the user's code, such as "train.py:57"; "" if unknown.
      groups: the ranks of each group.
    """

    name: str
    axes: str
    plan: str
    bytes: int
    line: str
    groups: tuple[tuple[Rank, ...], ...]

    def to_json(self) -> str:
        """The description as JSON, for an attribute of a custom call."""
        return json.dumps(self, separators=(",", ":"))

    def group_of(self, rank: Rank) -> tuple[Rank, ...]:
        """The ranks of the group that contains `rank`; empty if no group contains it."""
        return next((group for group in self.groups if rank in group), ())


class DeviceCalls(NamedTuple):
    """The calls of one device at one site.

    Attributes:
      arrived: the number of the latest call at which the device has arrived; the first call has number 1.
      ended: the number of calls that have ended.
      is_open: whether the latest call has not ended.
      for_s: seconds since the latest arrival or end.
      took_s: seconds from the device's arrival to the call's end, by the call's number, for some of the latest calls.
    """

    arrived: int
    ended: int
    is_open: bool
    for_s: float
    took_s: dict[int, float]


# Maps a site's key, and then JAX's id of a device, to the device's calls at the site. Sites with the latest calls come
# first.
Recorded = dict[str, dict[int, DeviceCalls]]

_cores: list[tuple[Core, str]] = []  # the cores that record arrivals, each with JAX's name of its platform


def add_core(core: Core, platform: str) -> None:
    """Registers the custom calls of a core with XLA.

    Args:
      core: the core.
      platform: JAX's name of the core's platform, "cpu" or "cuda".
    """
    xla_platform = {"cpu": "cpu", "cuda": "CUDA"}[platform]
    core.register(ARRIVE, "Arrive", xla_platform)
    core.register(END, "End", xla_platform)
    _cores.append((core, platform))


@functools.cache
def add_cpus() -> None:
    """Registers the custom calls for CPUs, once."""
    add_core(CPU, "cpu")


def open_s() -> float:
    """The longest time, in seconds, for which a call of this process has been open; 0 if no call is open."""
    longest = 0.0
    for core, _ in _cores:
        seconds = ctypes.c_double()
        core.call("arrivals_open", ctypes.byref(seconds))
        longest = max(longest, seconds.value)
    return longest


def read(most_sites: int = _LARGEST, most_calls: int = 64) -> Recorded:
    """The recorded calls of this process's devices.

    Args:
      most_sites: maximum number of sites to return; these are the sites with the latest calls.
      most_calls: maximum number of calls in `DeviceCalls.took_s`.
    """
    found: Recorded = {}
    for core, platform in _cores:
        sites = json.loads(core.text("arrivals", most_sites, most_calls))
        numbers = _device_numbers(platform) if sites else {}
        for site in sites:
            devices = found.setdefault(site["key"], {})
            for each in site["devices"]:
                took_s = {int(number): float(seconds) for number, seconds in each["calls"]}
                counts = each["arrived"], each["ended"], each["is_open"], each["for_s"]
                devices[numbers.get(each["device"], each["device"])] = DeviceCalls(*counts, took_s)
    return found


@functools.lru_cache(maxsize=_LARGEST)
def site(key: str) -> WatchedSite | None:
    """The description of a site that this process has recorded."""
    about = next((about for core, _ in _cores if (about := core.text("arrivals_about", int(key)))), "")
    if not about:
        return None
    found = WatchedSite(*json.loads(about))
    return found._replace(groups=tuple(tuple(Rank(*rank) for rank in group) for group in found.groups))


def _device_numbers(platform: str) -> dict[int, int]:
    """JAX's id of each device of this process, by the number that the core uses; empty if the two are always equal."""
    if platform == "cpu":
        return {}  # the core uses JAX's device ids
    devices: list[Any] = jax.local_devices(backend=platform)
    return {device.local_hardware_id: device.id for device in devices}
