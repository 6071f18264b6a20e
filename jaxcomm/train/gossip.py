"""Parameters averaged with one other rank per step, on an exponential graph: a baseline."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives import axes
from jaxcomm.collectives.axes import AxisName
from jaxcomm.train.divide_and_shuffle import ParameterAverage, mean_of

_Tree = TypeVar("_Tree")


def exponential_gossip(ranks: int, axis_name: AxisName) -> ParameterAverage:
    """Averages the parameters of each rank r and of rank r − 2^i (mod ranks), with i = step mod ⌈log2 ranks⌉.

    Rank r sends one message per step, to rank r + 2^i.

    Raises:
      ValueError: fewer than two ranks, or, during tracing, an axis of another number of ranks.
      NameError: during tracing, no such axis.

    Source: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning".

    Example:
      >>> average = jaxcomm.train.exponential_gossip(8, "data")
      >>> run = jax.shard_map(average, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
      >>> jax.jit(run)(jnp.arange(8.0), 0).tolist()
      [3.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    """
    if not isinstance(ranks, int) or ranks < 2:
        raise ValueError(f"exponential_gossip: ranks is {ranks!r}; it must be at least 2")
    hops = [2**i for i in range(math.ceil(math.log2(ranks)))]
    names = axes.names(axis_name)

    def exchange(params: Any, hop: int) -> Any:
        pairs = [(rank, (rank + hop) % ranks) for rank in range(ranks)]
        return jax.tree.map(lambda leaf: mean_of(leaf + lax.ppermute(leaf, names, pairs), 2), params)

    averages = [partial(exchange, hop=hop) for hop in hops]

    def average(params: _Tree, step: jax.Array | int) -> _Tree:
        axes.check("train.exponential_gossip", axis_name)
        if (here := lax.axis_size(names)) != ranks:
            raise ValueError(
                f"exponential_gossip: it is for {ranks} ranks, but axis {axis_name!r} has {here}.\n"
                f"  Cure: exponential_gossip({here}, {axis_name!r})."
            )
        result: _Tree = lax.switch(jnp.asarray(step) % len(averages), averages, params)
        return result

    return average
