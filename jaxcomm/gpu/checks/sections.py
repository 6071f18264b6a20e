"""The sections of `jaxcomm check`. Each section runs in its own process with a deadline, and leaves no process behind.

Each section writes a row as soon as it has the row. So a failure, a hang or a crash loses no earlier row and no other
section. Each section runs with a temporary certificate in which all sections passed. Without this certificate,
jaxcomm.psum would use neither the fused kernel nor NCCL's sends and receives.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomm.environment import CERTIFICATE, GPU_SMALL
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import certificate

BUDGET = 1190.0  # seconds for all sections together, just under twenty minutes
CANNOT = 77  # exit code of a section that cannot run; its last line of output is the reason

Result = dict[str, Any]  # "state", "seconds", "rows"


class Section(NamedTuple):
    """A section: its title, time limit, module, arguments, wrapper program and environment.

    The module gets the arguments and the path of the file for its result: {"rows": [...]}.
    """

    title: str
    seconds: int
    module: str
    arguments: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


def _virtual(name: str, seconds: int, title: str) -> Section:
    return Section(title, seconds, "virtual", (name,), (), {"JAX_ENABLE_X64": "1"} if name == "types" else {})


def _sanitized(tool: str) -> Section:
    wrapper = ("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9")
    return Section(f"compute-sanitizer {tool}, small sizes", 90, "virtual", ("exact",), wrapper, {GPU_SMALL: "1"})


# The first section is about the machine. Sections about correctness follow, then sections about speed.
ALL = {
    "machine": Section("the GPUs, the kind of memory that XLA gives, and what could run", 60, "machine"),
    "exact": _virtual("exact", 150, "every schedule, 8 virtual ranks, bit for bit against NumPy"),
    "types": _virtual("types", 90, "every element type and reduction, bit for bit against NumPy"),
    "deadline": _virtual("deadline", 60, "a rank that misses the deadline is named, and no result is taken for a sum"),
    "devices": Section("psum over the GPUs of this process, by the fused kernel", 120, "devices"),
    # The second argument is the seconds after which these two sections end their own processes.
    "nccl": Section("psum between processes, by NCCL's sends and receives", 200, "ranks", ("nccl", "190")),
    "permutes": Section("psum between processes, by XLA's permutes", 200, "ranks", ("permutes", "190")),
    "memcheck": _sanitized("memcheck"),
    "racecheck": _sanitized("racecheck"),
    "late": _virtual("late", 60, "one virtual rank 2 ms late: time after its arrival"),
    "kernels": Section("the kernel of importance masks beside a copy", 60, "kernels"),
}


class Machine(NamedTuple):
    """The reason why no section can run here (None if any can), and this machine's description for a certificate."""

    off: str | None
    made_for: dict[str, Any]


@functools.cache
def machine() -> Machine:
    """Describes this machine. Asks JAX in another process, once, so that this process holds no GPU memory."""
    script = (
        "import json; from jaxcomm.gpu import certificate, core; off = core.why_off()\n"
        "print(json.dumps([off, {} if off else certificate.here()]))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script], env=environment({}), capture_output=True, text=True, timeout=300
    )
    if asked.returncode != 0:
        raise JaxcommError(f"asking JAX for GPUs failed: {asked.stderr.strip().splitlines()[-1]}")
    return Machine(*json.loads(asked.stdout.splitlines()[-1]))


def lacks(section: Section) -> str | None:
    """The error text for a program that a section needs and that is not installed; None if no program is missing."""
    needs = section.wrapper[:1]
    return f"{needs[0]} is not installed" if needs and shutil.which(needs[0]) is None else None


def run(name: str, left: float) -> Result:
    """Runs a section in a process of its own, for at most `left` seconds, and returns its result."""
    section = ALL[name]
    if reason := lacks(section):
        return _left_out(reason)
    if left < 10:
        return _left_out(f"the {BUDGET:.0f} s of all sections were over")
    limit = min(section.seconds, left)
    with tempfile.TemporaryDirectory() as folder:
        out, shown = Path(folder, "result.json"), Path(folder, "check.json")
        shown.write_text(certificate.content(machine().made_for, {each: {"state": certificate.PASSED} for each in ALL}))
        command = [*section.wrapper, sys.executable, "-m", f"jaxcomm.gpu.checks.{section.module}", *section.arguments]
        extra = {**section.environment, CERTIFICATE: str(shown)}
        start = time.monotonic()
        code, printed = _end_with_children([*command, str(out)], environment(extra), limit)
        found: Result = {"seconds": round(time.monotonic() - start, 1), "rows": []}
        found |= json.loads(out.read_text()) if out.exists() else {}
    last = [line for line in printed.splitlines() if line.strip()][-5:]
    if code == CANNOT:
        return _left_out(last[-1])
    if code == 0:
        return found | {"state": certificate.PASSED}
    state = f"stopped after {limit:.0f} s" if code is None else f"failed with {code}"
    return found | {"state": state, "rows": [*found["rows"], *([line] for line in last)]}


def _left_out(reason: str) -> Result:
    return {"state": f"left out: {reason}", "seconds": 0.0, "rows": []}


def _end_with_children(command: list[str], env: dict[str, str], limit: float) -> tuple[int | None, str]:
    """Runs a command and returns its exit code and output. At the time limit, kills its processes; the code is None."""
    running = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = running.communicate(timeout=limit)
        return running.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        return None, running.communicate()[0]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a section, in which JAX allocates GPU memory only as needed."""
    return {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **extra}
