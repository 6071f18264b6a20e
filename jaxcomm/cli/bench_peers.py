"""The peers of `jaxcomm bench`: collectives of JAX, of MPI in a jitted step by mpi4jax, and of MPI without JAX."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomm.cli.common import spmd
from jaxcomm.errors import JaxcommError
from jaxcomm.schedules.schedule import CollectiveKind

Peer = Literal["lax", "mpi", "mpi4py"]
Body = Callable[[jax.Array], Any]
Buffers = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def by_lax(collective: CollectiveKind) -> Body:
    """Returns JAX's own collective as a function of one rank's row, for a `shard_map`."""
    lax: Any = jax.lax  # untyped in JAX
    bodies: dict[CollectiveKind, Body] = {
        "all_reduce": lambda x: lax.psum(x, spmd.AXIS),
        "reduce_scatter": lambda x: lax.psum_scatter(x[0], spmd.AXIS, tiled=True)[None],
        "all_gather": lambda x: lax.all_gather(x[0], spmd.AXIS, tiled=True)[None],
    }
    return bodies[collective]


def by_mpi(collective: CollectiveKind) -> Body:
    """Returns MPI's collective as a jittable function of one process's row. It needs no mesh: ranks are processes.

    Raises:
      JaxcommError: mpi4jax is missing or lacks the collective, or MPI and JAX number the processes differently.
    """
    if collective == "reduce_scatter":
        raise JaxcommError(
            "--peer mpi has no reduce_scatter: mpi4jax does not offer it.\n  Cure: all_reduce or all_gather."
        )
    world, mpi = _world("mpi")
    mpi4jax = _module("mpi", "mpi4jax")
    if collective == "all_gather":
        return lambda x: mpi4jax.allgather(x[0], comm=world).reshape(1, -1)
    return lambda x: mpi4jax.allreduce(x, op=mpi.SUM, comm=world)


def by_mpi4py(collective: CollectiveKind) -> Callable[[list[Buffers]], list[Buffers]]:
    """Returns MPI's allreduce without JAX, on pairs of host buffers.

    The second buffer of a pair gets the sum of all processes' first buffers. Then the two buffers are swapped.

    Raises:
      JaxcommError: the collective is not all_reduce, mpi4py is missing, or MPI and JAX number processes differently.
    """
    if collective != "all_reduce":
        raise JaxcommError(f"--peer mpi4py is for all_reduce, not for {collective}.\n  Cure: --peer mpi or lax.")
    world, _ = _world("mpi4py")

    def step(pairs: list[Buffers]) -> list[Buffers]:
        for own, total in pairs:
            world.Allreduce(own, total)
        return [(total, own) for own, total in pairs]

    return step


def row(array: jax.Array) -> jax.Array:
    """This process's part of an array, as a separate array."""
    return jnp.asarray(spmd.here(array))


def buffers(array: jax.Array) -> Buffers:
    """This process's part of an array in host memory, and zeros of the same shape."""
    own = np.array(spmd.here(array))
    return own, np.zeros_like(own)


def _world(peer: Peer) -> tuple[Any, Any]:
    """MPI's world communicator and MPI's module. Checks that MPI and JAX number the processes alike."""
    if jax.process_count() == 1:
        raise _start(peer, "MPI's ranks are processes, and this is the only one")
    if jax.local_device_count() > 1:
        raise _start(peer, f"MPI's ranks are processes, and this one has {jax.local_device_count()} devices")
    mpi = _module(peer, "mpi4py.MPI")
    world = mpi.COMM_WORLD
    ours = f"{jax.process_index()} of {jax.process_count()}"
    if f"{world.rank} of {world.size}" != ours:
        raise _start(peer, f"this process is {world.rank} of {world.size} to MPI and {ours} to JAX")
    return world, mpi


def _module(peer: Peer, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise JaxcommError(
            f"--peer {peer} needs {name.partition('.')[0]} and an MPI library: {error}.\n"
            "  Cure: an MPI with its headers (Debian: openmpi-bin libopenmpi-dev), pip install mpi4py, and for mpi\n"
            "  pip install setuptools cython nanobind && pip install --no-build-isolation mpi4jax"
        ) from error


def _start(peer: Peer, why: str) -> JaxcommError:
    return JaxcommError(
        f"--peer {peer}: {why}.\n  Cure: mpirun -n 4 jaxcomm bench --peer {peer} (--oversubscribe where cores are few)"
    )
