"""Many runs of a schedule, with profiled arrivals and random packet losses: the mean and the tail of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxcomm.schedules import Schedule
from jaxcomm.simulate.critical_path import Parts, critical_path
from jaxcomm.simulate.network import Network
from jaxcomm.simulate.simulation import Simulation


@dataclass(frozen=True)
class Forecast:
    """Seconds from the last rank's arrival to the end, over `runs` runs. `parts` is the mean critical path."""

    runs: int
    mean_s: float
    p99_s: float
    max_s: float
    parts: Parts


def repetitions(network: Network, steps: int, repeat: int) -> int:
    """The number of different runs: at most `repeat` and, without packet loss, at most one run per step."""
    return repeat if network.packet_loss and network.packet_loss.rate else min(repeat, max(1, steps))


def forecast(
    schedule: Schedule,
    nbytes: int,
    network: Network,
    arrivals: Sequence[Sequence[float]] = (),
    repeat: int = 100,
    tick: Callable[[], object] = lambda: None,
) -> Forecast:
    """Runs a schedule repeatedly, each time with different losses and with the arrivals of a different step.

    Args:
      schedule: any schedule.
      nbytes: size of the buffer.
      network: the network on which the schedule runs.
      arrivals: times at which the ranks arrive, one row per step; () lets all ranks arrive together.
      repeat: number of runs, see `repetitions`. If there are more steps than runs, evenly spaced steps are taken.
      tick: called after every run.
    """
    simulation = Simulation(schedule, nbytes, network)
    steps = np.array(arrivals) if len(arrivals) else np.zeros((1, schedule.ranks))
    runs = repetitions(network, len(steps), repeat)
    chosen = np.arange(runs) * len(steps) // runs if runs < len(steps) else np.arange(runs) % len(steps)
    after, parts = [], []
    for seed, step in enumerate(chosen):
        run = simulation.run(steps[step], seed)
        after.append(float(run.finish_s.max() - steps[step].max()))
        parts.append(critical_path(run, float(steps[step].min())))
        tick()
    mean = Parts(*np.mean(parts, axis=0).tolist())
    return Forecast(runs, float(np.mean(after)), float(np.quantile(after, 0.99)), max(after), mean)
