"""Averaging parameters over a few ranks at a time: divide and shuffle, and what it is compared with.

Every rank trains its own parameters, which a mesh axis shards. After the local update each of these functions takes
(parameters, step) and returns what this rank goes on with; `step` is traced, so one compiled step serves them all. Use
inside `jax.shard_map` with `check_vma=False`, as lax's axis_index_groups ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcomm.collectives.api import AxisName, pmean, psum
from jaxcomm.communicator import use_plan

Average = Callable[[Any, jax.Array | int], Any]
Groups = Sequence[Sequence[int]]


def divide_and_shuffle(iterations: Sequence[Groups], axis_name: AxisName) -> Average:
    """Averages over the groups of iteration `step mod len(iterations)`.

    Args:
      iterations: of one period, each with its groups, which hold every rank once; a plan's are
        `plan.groups.iterations`.
      axis_name: axis of the mesh.

    Raises:
      ValueError: no iteration, or groups that do not hold each rank once.

    Source: Wang et al., "DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization", section III.
    """
    if not iterations:
        raise ValueError("iterations is empty; it must have the groups of at least one")
    ranks = sum(len(group) for group in iterations[0])
    for i, groups in enumerate(iterations):
        if sorted(rank for group in groups for rank in group) != list(range(ranks)):
            raise ValueError(f"iterations[{i}] is {groups}; its groups must hold each of the {ranks} ranks once")
    averages = [partial(_group_mean, groups=groups, axis_name=axis_name) for groups in iterations]
    return lambda params, step: lax.switch(jnp.asarray(step) % len(averages), averages, params)


def local_sgd(every: int, axis_name: AxisName) -> Average:
    """Averages over all ranks after every so many steps (the last of them), and not in between.

    Source: Stich, "Local SGD Converges Fast and Communicates Little".
    """
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1 step")
    whole = partial(pmean, axis_name=axis_name)
    return lambda params, step: lax.cond(jnp.asarray(step) % every == every - 1, whole, lambda params: params, params)


def exponential_gossip(ranks: int, axis_name: AxisName) -> Average:
    """Averages with the rank 2^i further on, i = step mod ⌈log2 ranks⌉: one message per rank and step.

    Source: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning".
    """
    if ranks < 2:
        raise ValueError(f"ranks is {ranks}; at least 2 can gossip")
    hops = [2**i for i in range(math.ceil(math.log2(ranks)))]

    def exchange(params: Any, hop: int) -> Any:
        pairs = [(rank, (rank + hop) % ranks) for rank in range(ranks)]
        return jax.tree.map(lambda leaf: (leaf + lax.ppermute(leaf, axis_name, pairs)) / 2, params)

    averages = [partial(exchange, hop=hop) for hop in hops]
    return lambda params, step: lax.switch(jnp.asarray(step) % len(averages), averages, params)


def consensus_distance(params: Any, axis_name: AxisName) -> jax.Array:
    """How far the ranks' parameters are apart: the root mean square over ranks of a rank's distance to their mean."""
    mean = pmean(params, axis_name)
    squares = jax.tree.map(lambda leaf, middle: jnp.sum(jnp.square(leaf - middle)), params, mean)
    distance: jax.Array = jnp.sqrt(pmean(sum(jax.tree.leaves(squares)), axis_name))
    return distance


def _group_mean(params: Any, groups: Groups, axis_name: AxisName) -> Any:
    size = np.zeros(sum(map(len, groups)))
    for group in groups:
        size[list(group)] = len(group)
    share = 1 / jnp.asarray(size)[lax.axis_index(axis_name)]
    with use_plan(None):  # a plan is for all ranks; groups are smaller
        sums = psum(params, axis_name, axis_index_groups=groups)
    return jax.tree.map(lambda leaf: (leaf * share).astype(leaf.dtype), sums)
