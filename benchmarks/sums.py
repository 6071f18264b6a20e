"""Compiled sums over all devices of a job, for benchmarks that call them in turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcomm.cli.common import spmd


def call(psum: Callable[..., Any], devices: Sequence[jax.Device], nbytes: int) -> Callable[[], Any]:
    """Returns a function that sums `nbytes` of each device. It has run once, so it is compiled."""
    mesh = Mesh(np.array(devices), (spmd.AXIS,))
    summed = functools.partial(psum, axis_name=spmd.AXIS)
    mapped = jax.shard_map(summed, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
    zeros = spmd.place(np.zeros((mesh.size, nbytes // 4), np.float32), mesh, spmd.SPLIT)
    made = functools.partial(jax.jit(mapped), zeros)
    spmd.wait(made())
    return made
