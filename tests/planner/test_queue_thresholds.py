"""A switch's queues: drops compared with Markov chains and a simulation, thresholds with all other thresholds."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm.plan.queue_drops import queue_drops, switch_drops
from jaxcomm.planner.drops.queue_thresholds import CAPACITY, thresholds

few = settings(max_examples=25, deadline=None)
loads = st.sampled_from([0.05, 0.5, 0.9, 0.999999, 1.0, 1.000001, 1.4, 3.0])
shares = st.sampled_from([0.2, 0.5, 0.7])


# Queues


def chain(load: float, small_share: float, small: int, large: int) -> tuple[float, float]:
    """The shares of small and large packets that a queue drops, from its balance equations, state by state."""
    weights = [1.0]
    for waiting in range(large):
        weights.append(weights[-1] * (load if waiting < small else load * (1 - small_share)))
    return sum(weights[small:]) / sum(weights), weights[-1] / sum(weights)


@given(load=loads, small_share=shares, small=st.integers(0, 40), more=st.integers(0, 40))
def test_losses_are_those_of_the_chain(load: float, small_share: float, small: int, more: int) -> None:
    found = queue_drops(load, small_share, small, small + more)
    assert found == pytest.approx(chain(load, small_share, small, small + more), rel=1e-6)


@given(load=loads, room=st.integers(0, 40))
def test_one_threshold_is_the_textbook_queue(load: float, room: int) -> None:
    exact = (1 - load) * load**room / (1 - load ** (room + 1)) if load != 1 else 1 / (room + 1)
    assert queue_drops(load, 0.5, room, room) == pytest.approx((exact, exact), rel=1e-6)


def test_losses_of_extreme_queues() -> None:
    assert queue_drops(1e-9, 0.5, 300, 400) == (0, 0)
    assert queue_drops(50.0, 0.5, 3000, 4000) == pytest.approx((1, 1 - 1 / 25))
    assert queue_drops(0.0, 0.5, 0, 0) == (0, 0)  # no packet arrives, so none is lost


def simulated(offered: list[float], small_share: float, limits: list[tuple[int, int]], packets: int) -> Any:
    """The shares lost by queue, simulated packet by packet: exponential gaps and service times, strict priorities."""
    draw, now, finish = random.Random(0), 0.0, math.inf
    waiting = [0] * len(offered)
    came, lost = np.zeros((len(offered), 2)), np.zeros((len(offered), 2))
    arrivals = [(draw.expovariate(rate), i) for i, rate in enumerate(offered)]
    heapq.heapify(arrivals)
    while came.sum() < packets:
        if arrivals[0][0] < finish:
            now, queue = heapq.heappop(arrivals)
            heapq.heappush(arrivals, (now + draw.expovariate(offered[queue]), queue))
            large = draw.random() >= small_share
            came[queue, int(large)] += 1
            if waiting[queue] < limits[queue][large]:
                waiting[queue] += 1
            else:
                lost[queue, int(large)] += 1
        else:
            now = finish
            waiting[next(i for i, count in enumerate(waiting) if count)] -= 1
        finish = now + draw.expovariate(1.0) if any(waiting) else math.inf  # exponential times have no memory
    return lost / came


@pytest.mark.parametrize("load", [0.8, 1.0, 1.3])
def test_losses_are_those_of_a_simulated_queue(load: float) -> None:
    for small, large in ((4, 4), (3, 7)):
        [found] = simulated([load], 0.5, [(small, large)], 40_000)
        assert found == pytest.approx(np.array(queue_drops(load, 0.5, small, large)), abs=0.012)


def test_first_queue_of_a_switch_is_exact_and_its_leftover_is() -> None:
    offered, limits = [0.6, 0.5], [(2, 4), (5, 9)]
    found = simulated(offered, 0.5, limits, 60_000)
    first, second = switch_drops(offered, 0.5, limits)
    assert found[0] == pytest.approx(np.array(first), abs=0.01)
    left = 1 - 0.6 * (1 - float(first.mean(0.5)))
    assert second == pytest.approx(tuple(queue_drops(0.5 / left, 0.5, *limits[1])))
    assert found[1].mean() > float(second.mean(0.5))  # the capacity left varies in bursts, which the chain ignores


# Thresholds


def weighted(weight: float) -> Any:
    return lambda lost: weight * (lost.small + 50 * lost.large)


def best_of_all(packets: int, offered: list[float], small_share: float, bound: float) -> float:
    """The least cost over all thresholds. The capacity that is left is rounded down as in the planner."""

    def least(queue: int, room: int, left: int) -> float:
        if queue == len(offered):
            return 0.0
        costs = [math.inf]
        for large in range(room + 1):
            for small in range(large + 1) if left else ():
                lost = queue_drops(offered[queue] * CAPACITY / left, small_share, small, large)
                mean = float(lost.mean(small_share))
                if mean <= bound:
                    after = math.floor(left - offered[queue] * (1 - mean) * CAPACITY + 1e-9)
                    costs.append(float(weighted(queue + 1)(lost)) + least(queue + 1, room - large, max(0, after)))
        return min(costs)

    return least(0, packets, CAPACITY)


@pytest.mark.parametrize(("packets", "load"), [(5, 0.5), (8, 0.9), (9, 1.05), (12, 0.95)])
@pytest.mark.parametrize("small_share", [0.5, 0.3])
def test_thresholds_are_the_best_of_all(packets: int, load: float, small_share: float) -> None:
    offered, impacts = [0.4 * load, 0.6 * load], [weighted(1), weighted(2)]
    chosen = thresholds(packets, offered, small_share, 0.3, impacts)
    assert sum(large for _, large in chosen) <= packets
    lost = list(switch_drops(offered, small_share, chosen))
    assert all(small <= large for small, large in chosen)
    assert all(float(each.mean(small_share)) <= 0.3 for each in lost)
    cost = sum(float(impact(each)) for impact, each in zip(impacts, lost, strict=True))
    assert cost == pytest.approx(best_of_all(packets, offered, small_share, 0.3), rel=0.01)  # for rounding


@few
@given(
    load=st.sampled_from([0.3, 0.9, 1.03]), small_share=shares, queues=st.integers(1, 4), packets=st.integers(30, 60)
)
def test_more_buffer_is_never_worse(load: float, small_share: float, queues: int, packets: int) -> None:
    offered, impacts = [load / queues] * queues, [weighted(i + 1) for i in range(queues)]

    def cost(room: int) -> float:
        chosen = thresholds(room, offered, small_share, 0.2, impacts)
        lost = switch_drops(offered, small_share, chosen)
        return sum(float(impact(each)) for impact, each in zip(impacts, lost, strict=True))

    assert cost(packets + 20) <= cost(packets) * 1.01


def test_large_buffers_are_divided_coarsely() -> None:
    chosen = thresholds(10**6, [0.4, 0.5], 0.5, 0.1, [weighted(1), weighted(2)])
    assert sum(large for _, large in chosen) <= 8192
    assert all(large % 64 == 0 for _, large in chosen)
