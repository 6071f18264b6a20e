"""CP-SAT as every decision uses it: imported when needed, with one worker and a limit on its work instead of its time,
so that equal input gives equal output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jaxcomm.errors import load_extra

WORK_PER_SECOND: Final = 0.2  # the solver's deterministic time, on the machine where it was measured

Log = Callable[[str], None] | None


def load(purpose: str) -> Any:
    """OR-Tools' module cp_model; `what` needs it, for the message.

    Raises:
      JaxcommError: OR-Tools is not installed.
    """
    return load_extra("ortools.sat.python.cp_model", f"planning {purpose}")


def solver(cp_model: Any, work: float, seed: int, log: Log) -> Any:
    """A solver that stops after so much deterministic time; `log` receives the lines of its log."""
    made = cp_model.CpSolver()
    made.parameters.num_workers = 1
    made.parameters.random_seed = seed
    made.parameters.max_deterministic_time = work
    made.parameters.log_search_progress = log is not None
    made.parameters.log_to_stdout = False
    made.parameters.catch_sigint_signal = False  # an interrupt is not for the solver, which would go on with less
    made.log_callback = log
    return made
