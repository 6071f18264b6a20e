"""A run of a schedule, message by message: the times at which each rank sends, receives and is done.

No rank waits for the end of a round. A message starts when its chunks are available and its ports are free. Ranks may
arrive at any time, links may be shared, and packets may be lost.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules import Schedule
from jaxcomm.simulate.dependencies import Dependencies
from jaxcomm.simulate.incast import met
from jaxcomm.simulate.links import Links
from jaxcomm.simulate.network import Network
from jaxcomm.simulate.packet_loss import repairs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Messages:
    """The messages of one phase. Each array has one element per message.

    A message consists of all chunks that one rank sends another in one round. It occupies both ports from `start_s` to
    `free_s` and has arrived at `end_s`. `port_s` is its time at the slower port without losses and without queues at
    shared links. Lost packets add `resent_s` to this time, and they delay the arrival by another `wait_s`.
    """

    round: Ints
    src: Ints
    dst: Ints
    chunks: Ints
    start_s: Floats
    free_s: Floats
    end_s: Floats
    port_s: Floats
    resent_s: Floats
    wait_s: Floats


@dataclass(frozen=True)
class Run:
    """Times of a run. Rank r was done at `finish_s[r]`. `phases` has the preconditions first, the schedule last."""

    finish_s: Floats
    phases: tuple[Messages, ...]


class Simulation:
    """A schedule and its precondition on a network. They are unrolled once, for any number of runs."""

    def __init__(self, schedule: Schedule, nbytes: int, network: Network) -> None:
        """Unrolls the schedule for a buffer of `nbytes`."""
        self._ranks = schedule.ranks
        network = met(schedule, nbytes, network)
        self._nbytes, self._alpha = float(nbytes), network.alpha
        self._phases = [_Phase(phase, network) for phase in schedule.phases]

    def scaled(self, nbytes: float, alpha: float) -> Simulation:
        """Returns this simulation with another buffer size and latency, without unrolling the schedule again."""
        other = copy.copy(self)
        other._nbytes, other._alpha = nbytes, alpha
        return other

    def run(self, arrivals: Sequence[float] | None = None, seed: int = 0) -> Run:
        """Runs the schedule and its precondition once.

        Args:
          arrivals: times at which the ranks arrive, in seconds; by default all arrive at 0.
          seed: seed of the losses; equal seeds lose equal packets.

        Returns:
          The times of all messages, and the time at which each rank was done.
        """
        ready: Floats = np.zeros(self._ranks) if arrivals is None else np.array(arrivals, dtype=np.float64)
        if ready.shape != (self._ranks,):
            raise ValueError(f"arrivals has {len(ready)} times for {self._ranks} ranks; one per rank is needed")
        ran = []
        for phase, draws in zip(self._phases, np.random.default_rng(seed).spawn(len(self._phases)), strict=True):
            messages = phase.run(ready, self._nbytes, self._alpha, draws)
            for rank in (messages.src, messages.dst):
                ready = ready.copy()
                np.maximum.at(ready, rank, messages.end_s)
            ran.append(messages)
        return Run(ready, tuple(ran))


def run(
    schedule: Schedule, nbytes: int, network: Network, arrivals: Sequence[float] | None = None, seed: int = 0
) -> Run:
    """Runs a schedule and its precondition once; see `Simulation`."""
    return Simulation(schedule, nbytes, network).run(arrivals, seed)


class _Phase:
    """A schedule without its precondition."""

    def __init__(self, schedule: Schedule, network: Network) -> None:
        self._network = network
        self._needs = needs = Dependencies.of(schedule, network)
        self._share = needs.chunks / schedule.num_chunks
        self._early = needs.early / schedule.num_chunks
        self._beta = network.port_beta(needs.src, needs.dst)
        link, self._link_beta = network.shared(needs.src, needs.dst)
        self._links = Links(needs, link)

    def run(self, ready: Floats, nbytes: float, alpha: float, rng: np.random.Generator) -> Messages:
        needs, network, sizes = self._needs, self._network, self._share * nbytes
        resent: Floats = np.zeros(len(sizes))
        wait_s: Floats = np.zeros(len(sizes))
        if network.packet_loss:
            size = network.packet_loss.packet_bytes
            packets = np.ceil(sizes / size).astype(np.int64)
            again, wait_s = repairs(packets, network.packet_loss, network.bound, 2 * alpha, rng)
            resent = (again * np.minimum(size, sizes)).astype(np.float64)
        clean_s, port_s = sizes * self._beta, (sizes + resent) * self._beta
        there = np.maximum(ready[needs.src], ready[needs.dst])
        lag_s, link_s = alpha + wait_s, (sizes + resent) * self._link_beta
        start_s, free_s, end_s = self._links.times(there, port_s, self._early * nbytes, lag_s, link_s)
        return Messages(
            needs.round, needs.src, needs.dst, needs.chunks, start_s, free_s, end_s, clean_s, port_s - clean_s, wait_s
        )
