"""OR-Tools' solver CP-SAT. It gets one worker and a limit on work, not on time, so equal inputs give equal outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jaxcomm.errors import load_extra

WORK_PER_SECOND: Final = 0.2  # units of deterministic time that the solver uses per second, measured on one machine

Log = Callable[[str], None] | None


def load(purpose: str) -> Any:
    """Imports OR-Tools' module cp_model. `purpose` names the part of jaxcomm that needs it, for the error text.

    Raises:
      JaxcommError: OR-Tools is not installed.
    """
    return load_extra("ortools.sat.python.cp_model", purpose)


def solver(cp_model: Any, work: float, seed: int, log: Log) -> Any:
    """A solver that stops after `work` units of deterministic time. `log` receives the lines of the solver's log."""
    made = cp_model.CpSolver()
    made.parameters.num_workers = 1
    made.parameters.random_seed = seed
    made.parameters.max_deterministic_time = work
    made.parameters.log_search_progress = log is not None
    made.parameters.log_to_stdout = False
    made.parameters.catch_sigint_signal = False  # an interrupt must end the program, not only the search
    made.log_callback = log
    return made
