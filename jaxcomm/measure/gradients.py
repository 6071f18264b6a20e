"""Measures the time in a training step at which each gradient is ready."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import Bucket

_WARMUP_STEPS = 3


def measure_gradients(
    loss: Callable[..., Any], params: Any, *args: Any, devices: int, steps: int = 20, axis_name: str = "data"
) -> list[Bucket]:
    """Computes gradients on `devices` CPU devices of this process in parallel, and records when each is ready.

    The steps sum nothing: a gradient is ready when the backward pass has computed it. A gradient's time counts from
    the call of the jitted step, and is the median over the devices, then over the steps.

    Args:
      loss: `loss(params, *args)` is a rank's scalar loss; it runs inside `jax.shard_map` over `axis_name`.
      params: tree of arrays. A gradient has the name that `jax.tree_util.keystr` gives its array.
      args: one rank's part of a batch; every device gets the same part.
      devices: n, at least 1; JAX must have n CPU devices.
      steps: at least 1.
      axis_name: axis of the loss's collectives.

    Returns:
      A bucket for each non-empty array, in the order in which the gradients are ready. If the loss does not depend on
      the array, its gradient is ready at 0.

    Raises:
      ProfileError: too few devices, or no steps.
      ValueError: two arrays have the same name.
    """
    import jax

    from jaxcomm.collectives.buckets import in_backward, named
    from jaxcomm.ffi import marks

    found = jax.devices("cpu")
    if not 1 <= devices <= len(found):
        raise ProfileError(
            f"devices is {devices}, but JAX has {len(found)} CPU devices in this process.\n"
            f"  Cure: start it with XLA_FLAGS=--xla_force_host_platform_device_count={devices} and "
            f"PJRT_NPROC={4 * devices}."
        )
    if steps < 1:
        raise ProfileError(f"steps is {steps}; at least 1 is needed.\n  Cure: change it and measure again.")
    arrays = named(params)

    def marked(leaf: Any, number: int) -> Any:
        [same] = in_backward([leaf], lambda leaves: leaves, lambda grads: [marks.mark(grads[0], number)])
        return same

    def grads(params: Any, *args: Any) -> Any:
        def marked_loss(params: Any) -> Any:
            leaves: list[Any]
            tree: Any
            leaves, tree = jax.tree.flatten(params)
            return loss(tree.unflatten([marked(leaf, number) for number, leaf in enumerate(leaves)]), *args)

        return jax.grad(marked_loss)(params)

    same: Any = jax.sharding.PartitionSpec()  # untyped in JAX
    mesh = jax.sharding.Mesh(np.array(found[:devices]), (axis_name,))
    step = jax.jit(jax.shard_map(grads, mesh=mesh, in_specs=same, out_specs=same, check_vma=False))
    operands = jax.block_until_ready(jax.device_put((params, *args), jax.sharding.NamedSharding(mesh, same)))
    ready = defaultdict(list)
    for i in range(_WARMUP_STEPS + steps):
        times = defaultdict(list)
        for mark in marks.record(lambda: jax.block_until_ready(step(*operands))):
            times[mark.number].append(mark.seconds)
        for number in times if i >= _WARMUP_STEPS else ():
            ready[number].append(statistics.median(times[number]))
    buckets = [
        Bucket(name=name, bytes=array.nbytes, ready_s=round(statistics.median(ready[i]), 9) if i in ready else 0.0)
        for i, (name, array) in enumerate(arrays.items())
        if array.nbytes
    ]
    return sorted(buckets, key=lambda bucket: bucket.ready_s)
