"""The fabric side of `jaxcomm check`: tries each fabric of libfabric between two processes of this machine."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from jaxcomm.distributed.launch import commands
from jaxcomm.distributed.rails import fabrics
from jaxcomm.environment import FABRIC_TESTS, HOST, RAILS, TRANSPORT, is_on
from jaxcomm.measure.fabric_program import MARK, SIZES
from jaxcomm.report.tables import bytes_text, seconds_text

SECTIONS: Final = {
    "domains": "the fabrics that libfabric finds on this machine",
    "bits": "sums over each fabric have the same bits as over TCP",
    "rates": "the times and the processor times of sums over each fabric, and over TCP",
    "cancels": "sums that miss their deadline, and the sums after them",
    "kill": "a killed process is named in the error",
}
_OVER_TCP: Final = "127.0.0.1"  # the rail to compare with
_LIMIT_S: Final = 300.0  # time limit for one job

Row = list[str]


class BadFabric(Exception):
    """A fault that a section found."""


def why_off() -> str | None:
    """Why no section can run; None if the sections can run."""
    if _names():
        return None
    why = "finds no fabric faster than TCP" if fabrics.domains() else "is not installed"
    return f"libfabric {why} on this machine.\n  Cure: install libfabric with the provider of this machine's fabric."


def lacks(name: str) -> str | None:
    """Why a section cannot run; None if it can run."""
    del name
    reason = why_off()
    return reason.splitlines()[0] if reason else None


def known() -> str:
    """Returns "": no results of earlier runs are kept."""
    return ""


def run(name: str, elapsed: float) -> dict[str, Any]:
    """Runs one section."""
    del elapsed  # unused: a fabric takes about a minute
    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "domains": domains,
        "bits": bits,
        "rates": rates,
        "cancels": cancels,
        "kill": kill,
    }
    begun, rows, state = time.monotonic(), [], "passed"
    try:
        for row in sections[name]():
            rows.append(row)
    except BadFabric as error:
        state = f"failed: {error}"
    return {"state": state, "seconds": round(time.monotonic() - begun, 1), "rows": rows}


def keep(results: dict[str, Any]) -> None:
    """Does nothing: a rail over a fabric is used only if the user names it."""
    del results


def about() -> dict[str, Any]:
    """The machine, and all domains of libfabric."""
    return {"machine": platform.platform(), "fabrics": [each.rail for each in fabrics.domains()]}


def summary() -> str:
    """The line that is printed after all sections."""
    return f"Name a fabric as a rail to use it, as in {RAILS}={_names()[0]}. Sums between hosts remain to be tried."


def domains() -> Iterator[Row]:
    """The fabrics that are tried."""
    yield ["rail", "Mbit/s"]
    for each in fabrics.domains():
        if each.rail in _names():
            yield [each.rail, str(each.mbit or "-")]


def bits() -> Iterator[Row]:
    """Compares the bits of sums with the bits of the same sums over TCP."""
    yield ["rail", *(f"sum of {bytes_text(size)}" for size in SIZES)]
    right = _tries(_OVER_TCP)[0]["bits"]
    for rail in _names():
        found = [each["bits"] for each in _tries(rail)]
        same = ["same" if all(each[i] == right[i] for each in found) else "other" for i in range(len(SIZES))]
        yield [rail, *same]
        if "other" in same:
            raise BadFabric(f"sums over {rail} have other bits than over TCP")


def rates() -> Iterator[Row]:
    """Measures the times and processor times of all-reduces. A slow fabric is not a failure."""
    yield ["rail", *(f"{bytes_text(size)}, processor" for size in SIZES)]
    for rail in (_OVER_TCP, *_names()):
        rows = _tries(rail)[0]["rates"]
        yield [rail, *(f"{seconds_text(seconds)}, {seconds_text(busy)}" for seconds, busy in rows)]


def cancels() -> Iterator[Row]:
    """Counts the sums that missed their deadline, and the later sums whose results were wrong."""
    yield ["rail", "missed their deadline", "wrong sums"]
    for rail in _names():
        found = _tries(rail)
        yield [rail, str(sum(each["cancelled"] for each in found)), str(wrong := sum(each["wrong"] for each in found))]
        if wrong:
            raise BadFabric(f"{wrong} sums over {rail} are wrong")


def kill() -> Iterator[Row]:
    """Kills one of the processes, and checks that the error names the killed process."""
    yield ["rail", "seconds until the error", "error"]
    for rail in _names():
        found = _run(rail, "killed")[0]
        yield [rail, f"{found['seconds']:.2f}", found["error"]]
        if "process 1" not in found["error"]:
            raise BadFabric(f"the error over {rail} does not name the killed process")


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(each.rail for each in fabrics.domains() if not each.is_for_tests or is_on(FABRIC_TESTS))


@functools.cache
def _tries(rail: str) -> list[dict[str, Any]]:
    return _run(rail, "tries")


def _run(rail: str, part: str) -> list[dict[str, Any]]:
    """Runs the program in two processes, and returns the findings of each process that was not killed."""
    coordinator = commands.local_coordinator()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        jobs, files = [], [Path(folder, str(process)) for process in range(2)]
        for process, file in enumerate(files):
            own = commands.variables(process, 2, devices=1, coordinator=coordinator, environment=os.environ)
            with file.open("w") as output:
                jobs.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "jaxcomm.measure.fabric_program", part],
                        env=commands.inherited(os.environ)
                        | own
                        | {TRANSPORT: "auto", RAILS: rail, HOST: f"host {process}"},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            deadline = time.monotonic() + _LIMIT_S
            for job in jobs:
                job.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise BadFabric(f"sums over {rail} did not end in {_LIMIT_S:.0f} s") from error
        finally:
            for job in jobs:
                job.kill()
        for file in files:
            lines = file.read_text(errors="replace").splitlines()
            found += [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
            if not found:
                raise BadFabric(f"sums over {rail} failed: {' '.join(lines[-3:])[-400:]}")
    return found
