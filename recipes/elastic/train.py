"""A training whose processes may die and rejoin: a linear model, by steps in blocks inside JAX's `live_devices`.

    jaxcomm launch -n 4 --restart 10 recipes/elastic/train.py
    sbatch recipes/elastic/slurm.sh recipes/elastic/train.py
    kubectl apply -f recipes/elastic/kubernetes.yaml

Every process that dies is started again and gets the state of the process with the most steps.
"""

from __future__ import annotations

import functools
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import ProcessFailureError, live_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcomm

BLOCK, WIDTH, BATCH = 20, 64, 24  # steps of a block, the model's inputs, examples of a device
RANKS, WHOLE = PartitionSpec("data"), PartitionSpec()


def start() -> dict[str, np.ndarray]:
    """The first parameters, the same in all processes. A checkpoint, if there is one, covers the death of all."""
    return {"weights": np.zeros(WIDTH, np.float32), "bias": np.zeros((), np.float32)}


def batch(step: int, devices: int) -> dict[str, np.ndarray]:
    """The examples of a step, the same in all processes; their number divides by the number of devices."""
    x = np.random.default_rng(step).standard_normal((BATCH * devices, WIDTH), np.float32)
    return {"x": x, "y": x.sum(axis=1) + 1}


def loss(params: dict[str, jax.Array], examples: dict[str, jax.Array]) -> jax.Array:
    """The mean squared error."""
    return jnp.mean((examples["x"] @ params["weights"] + params["bias"] - examples["y"]) ** 2)


def train_step(params: dict[str, jax.Array], examples: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """One step on a device's examples; the gradient is the mean over all live devices."""
    gradient = jaxcomm.pmean(jax.grad(loss)(params, examples), "data")
    return jax.tree.map(lambda value, change: value - 0.05 * change, params, gradient)


@functools.cache  # earlier members' steps are kept, and run again when these members are back
def over(*devices: jax.Device) -> tuple[Mesh, jax.stages.Wrapped]:
    """A mesh of these devices, and the compiled step on it."""
    mesh = Mesh(np.array(devices), ("data",))
    return mesh, jax.jit(
        jax.shard_map(train_step, mesh=mesh, in_specs=(WHOLE, RANKS), out_specs=WHOLE, check_vma=False)
    )


def put(tree: dict[str, np.ndarray], mesh: Mesh, spec: PartitionSpec) -> dict[str, jax.Array]:
    """Places values that all processes have. `jax.device_put` may ask all processes, dead ones included."""
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda value: jax.make_array_from_callback(value.shape, sharding, value.__getitem__), tree)


def main(steps: int) -> None:
    """Trains."""
    if (number := os.environ.get("JOB_COMPLETION_INDEX")) is not None:  # a pod of an Indexed Job
        jax.distributed.initialize(num_processes=int(os.environ["PROCESSES"]), process_id=int(number))
    else:
        jax.distributed.initialize()
    jaxcomm.init()
    params, step = start(), 0
    while step < steps:
        try:
            with live_devices(jax.devices()) as devices, jaxcomm.errors.translated():
                step, params = jaxcomm.elastic.catch_up(step, params)  # a process that has just started gets both here
                mesh, train = over(*devices)
                now = put(params, mesh, WHOLE)
                for number in range(step, step + BLOCK):
                    now = train(now, put(batch(number, len(devices)), mesh, RANKS))
                now = jax.tree.map(lambda value: np.asarray(value.addressable_data(0)), now)
        except (ProcessFailureError, jaxcomm.errors.DeadlineError) as error:
            print(f"block at step {step}: {error.__cause__ or error}", flush=True)  # goes on from `params`
        else:
            params, step = now, step + BLOCK
            if jax.process_index() == min(device.process_index for device in devices):
                print(f"step {step} over {len(devices)} devices: loss {loss(params, batch(0, 1)):.2e}", flush=True)
    if jax.process_index() == 0:
        print(jaxcomm.stats())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
