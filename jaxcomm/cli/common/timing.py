"""Times several functions in one process, in turns, so that other work on the machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxcomm.cli.common import job, spmd

_BLOCK_S = 0.1
_MOST_CALLS = 50


class Side:
    """A jitted step whose outputs are donated as its next inputs. A call waits for the outputs."""

    def __init__(self, step: Callable[[Any], Any], start: Any) -> None:
        """Runs the step twice, to compile it and to touch its memory.

        Args:
          step: a function whose outputs have the shapes and types of its inputs.
          start: the first inputs, which are donated.
        """
        self._step, self._values = step, start
        for _ in range(2):
            self()

    def __call__(self) -> float:
        """Makes one call, and returns its seconds."""
        start = time.perf_counter()
        self._values = spmd.wait(self._step(self._values))
        return time.perf_counter() - start


def take_turns(
    sides: Mapping[str, Side], rounds: int, each_round: Callable[[], object]
) -> dict[str, list[list[float]]]:
    """Returns, for each side and turn, the seconds of each call. In every round each side has a turn of about 0.1 s.

    Args:
      sides: the functions to time, by name.
      rounds: number of turns of every side.
      each_round: called after every round, for a progress bar.
    """
    slowest = job.agree(max(side() for side in sides.values()))  # all processes make the same number of calls
    calls = min(_MOST_CALLS, max(2, round(_BLOCK_S / slowest)))
    seconds: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append([side() for _ in range(calls)])
        each_round()
    return seconds
