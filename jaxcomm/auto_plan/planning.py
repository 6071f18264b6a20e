"""Makes plans from a run's measurements, in a process of low priority that leaves the cores to the training."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import JaxcommError
from jaxcomm.profile import Profile, save
from jaxcomm.profile.files import validate
from jaxcomm.profile.schema import FORMAT, VERSION, Provenance

_SOLVER_S: Final = 5.0
_LONGEST_S: Final = 600.0
_POLL_S: Final = 0.1


def profile_of(links: Mapping[str, Any], arrivals: NDArray[np.float64], nbytes: int, after_s: float) -> Profile:
    """The profile of a run.

    Args:
      links: the profile's fields on links, as `jaxcomm.measure.placement.describe` returns them.
      arrivals: the ranks' arrivals in seconds; a row for each call, a column for each rank.
      nbytes: bytes of a call.
      after_s: seconds of a call from its last arrival to its end.
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": arrivals.shape[1],
        **links,
        "arrivals": np.round(arrivals, 9).tolist(),
        "warmup_dropped": 0,
        "collective": {"bytes": nbytes, "seconds": after_s},
        "provenance": Provenance(source="a run with plan='auto'", tool="jaxcomm.auto_plan").model_dump(),
    }
    return validate(document, "the run's profile")


def plan_text(profile: Profile, has_ended: Callable[[float], bool]) -> str:
    """Makes a plan from a profile, and returns the text of the plan's file.

    Args:
      profile: the profile to plan from.
      has_ended: waits for the given seconds; returns whether the run has ended.

    Raises:
      JaxcommError: the planner failed or took too long, or the run has ended.
    """
    try:
        return _plan_text(profile, has_ended)
    except OSError as error:
        raise JaxcommError(f"the planner cannot be started: {error}") from error


def _plan_text(profile: Profile, has_ended: Callable[[float], bool]) -> str:
    with tempfile.TemporaryDirectory(prefix="jaxcomm-") as folder:
        found, made = Path(folder, "profile.json"), Path(folder, "plan.json")
        save(profile, found)
        nice = [shutil.which("nice") or "", "-n", "19"]
        command = [sys.executable, "-m", "jaxcomm.cli", "plan", str(found), "--out", str(made)]
        with (
            Path(folder, "errors").open("wb") as errors,
            subprocess.Popen(
                [*(nice if nice[0] else []), *command, "--time-limit", str(_SOLVER_S)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            ) as planner,
        ):
            for _ in range(round(_LONGEST_S / _POLL_S)):
                if planner.poll() is not None:
                    break
                if has_ended(_POLL_S):
                    planner.kill()
                    raise JaxcommError("the run has ended")
            else:
                planner.kill()
                raise JaxcommError(f"the planner did not finish within {_LONGEST_S:g} s")
        if planner.returncode:
            raise JaxcommError(f"the planner failed: {Path(folder, 'errors').read_text(errors='replace').strip()}")
        return made.read_text()
