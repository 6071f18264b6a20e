"""Runs the commands of claims, each once in a rerun, and reads the times that they write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.claims import load
from benchmarks.claims.model import ROOT, Claim, ClaimError, Need

Say = Callable[[str], object]  # called with each command before it runs

_TAIL = 1500  # characters of a failed command's output
_MPI_LIBRARY = "MPITRAMPOLINE_LIB"
_END_S = 30.0  # time limit for the removal of a testbed


class Ran(NamedTuple):
    """The result of one run of a command: the rows of `$TIMES`, and the share of the processors that others used."""

    rows: list[dict[str, Any]]
    others: float


class Commands:
    """The commands of a rerun, with their results."""

    def __init__(self, out: Path) -> None:
        """`out` is `$OUT`, the folder of their files."""
        self._out, self._ran = out, dict[tuple[str, int], Ran | ClaimError]()

    def run(self, claim: Claim, say: Say) -> list[list[Ran]]:
        """Runs those of a claim's commands that have not run yet.

        Args:
          claim: the claim.
          say: called with each command before it runs.

        Returns:
          The result of each launch of each measuring command. The load of the preparing commands counts for the first.

        Raises:
          ClaimError: a command failed, or took too long.
        """
        before = max([self._once(claim, command, 0, say).others for command in claim.preparing], default=0.0)
        launches = [[self._once(claim, each, n, say) for each in claim.measuring] for n in range(claim.launches)]
        found = [list(each) for each in zip(*launches, strict=True)]
        found[0][0] = found[0][0]._replace(others=max(before, found[0][0].others))
        return found

    def _once(self, claim: Claim, command: str, launch: int, say: Say) -> Ran:
        key = command, launch
        if key not in self._ran:
            say(command)
            try:
                self._ran[key] = self._run(claim, command)
            except ClaimError as problem:
                self._ran[key] = problem
        ran = self._ran[key]
        if isinstance(ran, ClaimError):
            raise ran
        return ran

    def _run(self, claim: Claim, command: str) -> Ran:
        limit_s = 120.0 + 5 * claim.seconds
        times, log = self._out / f"times_{len(self._ran)}.json", self._out / f"log_{len(self._ran)}.txt"
        before = load.used()
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=ROOT,
                env=environment(self._out, times, claim.needs),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = _ended(process, limit_s)
        if status != 0:
            how = f"ended with exit status {status}" if status is not None else f"had not ended after {limit_s:.0f} s"
            raise ClaimError(
                f"the command {how}: {command}\n{log.read_text()[-_TAIL:].rstrip()}\n"
                f"  Cure: run it by itself, or read {log}."
            )
        rows = json.loads(times.read_text())["rows"] if times.exists() else []
        return Ran(rows, load.others(before, load.used()))


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """The process's exit status, or None after the time limit. Then the process is ended, with its children."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for sent, wait_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, None)):
            if process.poll() is None:
                os.killpg(process.pid, sent)
                try:
                    process.wait(wait_s)
                except subprocess.TimeoutExpired:
                    continue


def environment(out: Path, times: Path, needs: list[Need]) -> Mapping[str, str]:
    """This process's environment, with this Python's programs first in PATH, and the variables that commands use."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {**os.environ, "PATH": programs, "JAX_PLATFORMS": "cpu", "OUT": str(out), "TIMES": str(times)}
    if "mpiwrapper" not in needs:
        own.pop(_MPI_LIBRARY, None)  # with it, jaxcomm does not carry the collectives of unchanged programs
    return own


def missing(needs: list[Need]) -> str | None:
    """The needs of a claim that this machine lacks, in words; None if it has all."""
    lacks = [words for need, (has, words) in _NEEDS.items() if need in needs and not has()]
    return "; ".join(lacks) or None


def _has_root() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


def _has_gloo() -> bool:
    import jaxlib._jax

    return hasattr(jaxlib._jax, "collectives") or hasattr(jaxlib._jax, "make_gloo_tcp_collectives")


def _has_module(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


_NEEDS: dict[Need, tuple[Callable[[], bool], str]] = {
    "root": (_has_root, "it needs root and iproute2, for network namespaces"),
    "gloo": (_has_gloo, "this jaxlib has no Gloo"),
    "mpi": (lambda: shutil.which("mpirun") is not None and _has_module("mpi4py"), "it needs mpirun and mpi4py"),
    "mpiwrapper": (
        lambda: shutil.which("mpirun") is not None and os.path.isfile(os.environ.get(_MPI_LIBRARY, "")),
        "it needs mpirun and MPITRAMPOLINE_LIB (see benchmarks/unchanged.py)",
    ),
    "equinox": (lambda: _has_module("equinox"), "it needs the package equinox"),
    "gpu": (lambda: Path("/dev/nvidia0").exists(), "it needs an NVIDIA GPU"),
}
