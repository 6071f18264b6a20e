"""Parameters averaged with one other rank per step, on an exponential graph: a baseline."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives.api import AxisName
from jaxcomm.train.divide_and_shuffle import Average


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
