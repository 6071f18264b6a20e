"""A trace of `jax.profiler` (.xplane.pb): the arrivals at each collective, and the time of an allreduce.

On CPU each device's thread has an event for each instruction, with device_ordinal and run_id. The event of an XLA
collective contains a `Rendezvous` event, which names the devices that take part. jaxcomm's own calls contain no
`Rendezvous`; the program's instruction names their devices. On GPU each device has a plane, whose streams hold the NCCL
kernels, and all devices of the trace count as one group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.fit import assumed, fit
from jaxcomm.profile.importers import hlo
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Collective, Link, Profile, Provenance

NAME = "a jax.profiler trace"
LOOKED_FOR = ".xplane.pb: a protobuf with a '/host:' or '/device:' plane"

MAX_BYTES = 2**50

_RENDEZVOUS = re.compile(r"(?:all reduce|all gather|reduce scatter|all to all) .*global_devices=\[([\d, ]+)\]")
_GPU_PLANE = re.compile(r"/device:GPU:(\d{1,6})")
_NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_(?:AllReduce|ReduceScatter|AllGather)\w*")


class _Op(NamedTuple):
    """A collective in a program, such as "jit_step(8)", and one group of devices that run it."""

    program: str
    name: str
    devices: tuple[int, ...]  # on GPU: (), which stands for all devices of the trace


class _Call(NamedTuple):
    """One device's part in one execution of a collective."""

    op: _Op
    run: object
    device: int
    start_s: float
    end_s: float


class _Timing(NamedTuple):
    """The ranks' lateness and times in all complete executions of one collective: arrays [executions, ranks]."""

    lateness: np.ndarray
    seconds: np.ndarray

    @property
    def waiting(self) -> float:
        return float((self.lateness.max(axis=1, keepdims=True) - self.lateness).sum())

    @property
    def median_on_last(self) -> float:
        last = self.lateness.argmax(axis=1)
        return float(np.median(self.seconds[np.arange(len(last)), last]))


def sniff(data: bytes) -> bool:
    """Whether the bytes begin with a message, the first plane, and contain the name of a host or device plane."""
    return data[:1] == b"\n" and re.search(rb"\x12./(?:host|device):", data, re.DOTALL) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the traced process.

    The collective in which the ranks wait longest in total gives the arrivals, one row per execution. After this
    collective the ranks are in step, so other collectives would only add noise. The sizes and times of all allreduces
    give α and β. Executions in which a device is missing are left out; the trace begins or ends within them.

    Args:
      data: the serialised XSpace.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile.

    Raises:
      ProfileError: the trace cannot be decoded, or holds no collective of two devices.
    """
    from jax.profiler import ProfileData

    try:
        space = ProfileData.from_serialized_xspace(data)
        allreduces = hlo.allreduces(data)
        planes = {plane.name: list(plane.lines) for plane in space.planes}
        on_gpu = any(_GPU_PLANE.fullmatch(name) for name in planes)
        calls = list(_gpu_calls(planes) if on_gpu else _cpu_calls(planes.get("/host:CPU", []), allreduces))
    except (RuntimeError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ProfileError(
            f"{where}: cannot be decoded as an XSpace: {error}.\n  Cure: trace again; the file may be cut short."
        ) from None
    timings = _timings(calls, by_duration=on_gpu)
    if not timings:
        raise ProfileError(
            f"{where}: holds no collective in which two devices meet.\n"
            "  Cure: trace a step that runs psum over two or more devices, with the default profiler options."
        )
    op, timing = max(timings.items(), key=lambda item: item[1].waiting)
    ranks = timing.lateness.shape[1]
    where_op = f"{where}: {len(timing.lateness)} executions of {op.name} in {op.program}"
    link = _link(timings, allreduces, ranks, where_op)
    nbytes = _bytes(op, allreduces)
    return Profile(
        ranks=ranks,
        link=link,
        arrivals=timing.lateness.round(9).tolist(),
        collective=Collective(bytes=nbytes, seconds=timing.median_on_last) if nbytes else None,
        provenance=Provenance(source=where, tool="jax.profiler", versions=_versions(space), created=created),
    )


def _cpu_calls(lines: list[Any], allreduces: dict[tuple[str, str], hlo.HloAllReduce]) -> Iterator[_Call]:
    for line in lines:
        instruction: dict[str, Any] = {}
        start_s = end_s = 0.0
        for event in sorted(line.events, key=lambda event: event.start_ns):
            if event.name.startswith(("$", "end: ")):  # Python frames, and the ends of earlier events
                continue
            stats = dict(event.stats)
            if "device_ordinal" in stats and "hlo_op" in stats:
                instruction, start_s, end_s = stats, event.start_ns / 1e9, event.end_ns / 1e9
                own = allreduces.get((_program(stats), stats["hlo_op"]))
                groups = own.groups if own else ()
            elif event.name == "Rendezvous" and instruction and event.start_ns / 1e9 <= end_s:
                met = _RENDEZVOUS.match(str(stats.get("name", "")))
                groups = (tuple(int(device) for device in met[1].split(",")),) if met else ()
            else:
                continue
            for devices in groups:
                if int(instruction["device_ordinal"]) in devices:
                    op = _Op(_program(instruction), str(instruction["hlo_op"]), devices)
                    yield _Call(op, instruction["run_id"], int(instruction["device_ordinal"]), start_s, end_s)


def _gpu_calls(planes: dict[str, list[Any]]) -> Iterator[_Call]:
    for name, lines in planes.items():
        if device := _GPU_PLANE.fullmatch(name):
            for line in lines:
                for event in line.events if line.name.startswith("Stream") else ():
                    if kernel := _NCCL_KERNEL.match(event.name):
                        stats = dict(event.stats)
                        op = _Op(_program(stats), str(stats.get("hlo_op", kernel[0])), ())
                        yield _Call(op, None, int(device[1]), event.start_ns / 1e9, event.end_ns / 1e9)


def _program(stats: dict[str, Any]) -> str:
    return f"{stats.get('hlo_module', 'unknown')}({stats.get('program_id', '')})"


def _timings(calls: list[_Call], by_duration: bool) -> dict[_Op, _Timing]:
    """The complete executions of each collective. The k-th calls of all devices in a run are one execution.

    On GPU all ranks leave a kernel together, so a rank's lateness is the longest time in the kernel minus the rank's
    own time. This needs no common clock. On CPU a rank's lateness is its start minus the first rank's start, because a
    thread may wake up late at the end of a call.
    """
    seen: dict[tuple[_Op, object, int], int] = defaultdict(int)
    executions: dict[_Op, dict[tuple[object, int], dict[int, _Call]]] = defaultdict(lambda: defaultdict(dict))
    for call in sorted(calls, key=lambda call: call.start_s):
        at = (call.op, call.run, call.device)
        executions[call.op][call.run, seen[at]][call.device] = call
        seen[at] += 1
    timings = {}
    for op, by_execution in executions.items():
        devices = op.devices or tuple(sorted({device for row in by_execution.values() for device in row}))
        complete = [[row[device] for device in devices] for row in by_execution.values() if set(row) == set(devices)]
        if len(devices) >= 2 and complete:
            start = np.array([[call.start_s for call in row] for row in complete])
            seconds = np.array([[call.end_s for call in row] for row in complete]) - start
            late = seconds.max(axis=1, keepdims=True) - seconds if by_duration else start - start.min(1, keepdims=True)
            timings[op] = _Timing(late, seconds)
    return timings


def _link(
    timings: dict[_Op, _Timing], allreduces: dict[tuple[str, str], hlo.HloAllReduce], ranks: int, source: str
) -> Link:
    samples = [
        Sample(bytes=nbytes, seconds=timing.median_on_last)
        for op, timing in timings.items()
        if (nbytes := _bytes(op, allreduces)) and timing.lateness.shape[1] == ranks and timing.median_on_last > 0
    ]
    return fit(samples, "all_reduce", ranks, source) if samples else assumed(source)


def _bytes(op: _Op, allreduces: dict[tuple[str, str], hlo.HloAllReduce]) -> int:
    """Bytes of an allreduce; 0 if `op` is another collective, or the size is out of range."""
    known = allreduces.get((op.program, op.name))
    return known.bytes if known and known.bytes <= MAX_BYTES else 0


def _versions(space: Any) -> dict[str, str]:
    metadata = space.find_plane_with_name("/host:metadata")
    stats = {key: str(value)[:64] for key, value in metadata.stats} if metadata else {}
    return {key.removesuffix("_version"): stats[key] for key in ("jax_version", "jaxlib_version") if key in stats}
