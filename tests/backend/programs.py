"""A program for several processes that uses jax.lax and shardings only; values are compared with NumPy's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.processes import jobs

Case = Callable[[], tuple[Any, Any]]  # what came, and what should have come
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def whole(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any order."""
    return (np.arange(np.prod(shape)) % 13 - 4).reshape(shape).astype(dtype)


def placed(value: np.ndarray, mesh: Mesh, spec: P) -> jax.Array:
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])


def line(devices: Any = None) -> Mesh:
    return Mesh(np.array(devices or jax.devices()), ("x",))


def grid() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, -1), ("a", "b"))


def mapped(body: Any, value: np.ndarray, mesh: Mesh, spec: P, out: P) -> jax.Array:
    step = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    return jax.jit(step)(placed(value, mesh, spec))


def local(array: jax.Array) -> np.ndarray:
    """The whole array, as this process can see it."""
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def blocks(value: np.ndarray) -> np.ndarray:
    return value.reshape(jax.device_count(), -1)


@case
def sum_that_xla_inserts() -> tuple[Any, Any]:
    value = whole((24, 8))
    total = jax.jit(lambda x: x.sum(0))(placed(value, line(), P("x")))
    return total.addressable_data(0), value.sum(0)


@case
def tensor_parallel() -> tuple[Any, Any]:
    mesh = grid()
    x, w, v = whole((8, 16)), whole((16, 12)), whole((12, 4))
    step = jax.jit(lambda x, w, v: (x @ w) @ v, out_shardings=NamedSharding(mesh, P("a")))
    y = step(placed(x, mesh, P("a")), placed(w, mesh, P(None, "b")), placed(v, mesh, P("b")))
    return local(y), x @ w @ v


@case
def fully_sharded_gradients() -> tuple[Any, Any]:
    mesh = line()
    w, x = whole((24, 12)), whole((24, 24))
    grads = jax.jit(jax.grad(lambda w, x: jnp.sum(x @ w)), out_shardings=NamedSharding(mesh, P("x")))
    return local(grads(placed(w, mesh, P("x")), placed(x, mesh, P("x")))), np.tile(x.sum(0)[:, None], (1, 12))


@case
def every_type() -> tuple[Any, Any]:
    got, wanted = [], []
    for dtype in (np.int8, np.uint8, np.int16, np.uint32, np.int32, np.float32, jnp.bfloat16, np.complex64):
        value = whole((jax.device_count() * 6,)).astype(dtype)
        got.append(mapped(lambda x: lax.psum(x, "x"), value, line(), P("x"), P()).addressable_data(0))
        wide = np.int64 if np.issubdtype(dtype, np.integer) else np.complex64
        total = blocks(value.astype(wide)).sum(0)
        wanted.append((total if dtype == np.complex64 else total.real).astype(dtype))
    return got, wanted


@case
def products_and_booleans() -> tuple[Any, Any]:
    value = whole((24,))
    mesh = line()
    got = jax.jit(lambda x: (jnp.prod(x), jnp.any(x > 7), jnp.all(x > 0), jnp.argmax(x)))(placed(value, mesh, P("x")))
    wanted = np.prod(value), np.any(value > 7), np.all(value > 0), np.argmax(value)
    return [each.addressable_data(0) for each in got], [*wanted]


@case
def extremes_keep_a_nan() -> tuple[Any, Any]:
    value = whole((jax.device_count(),))
    value[-1] = np.nan

    def body(x):
        return (lax.pmax(x, "x"), lax.pmin(x, "x"))

    got = mapped(body, value, line(), P("x"), P())
    return [each.addressable_data(0) for each in got], [np.full(1, np.nan, np.float32)] * 2


@case
def sizes() -> tuple[Any, Any]:
    got, wanted = [], []
    for elements in (1, 3, 1000, 5000, 300_001):
        value = whole((jax.device_count() * elements,))
        got.append(mapped(lambda x: lax.psum(x, "x"), value, line(), P("x"), P()).addressable_data(0))
        wanted.append(blocks(value).sum(0))
    return got, wanted


@case
def scatter_and_gather() -> tuple[Any, Any]:
    count = jax.device_count()
    value = whole((count * count * 1000,))

    def both(x):
        return lax.all_gather(lax.psum_scatter(x, "x", tiled=True), "x", tiled=True)

    return mapped(both, value, line(), P("x"), P()).addressable_data(0), blocks(value).sum(0)


@case
def permute() -> tuple[Any, Any]:
    count = jax.device_count()
    value = whole((count * 40_000,))

    def shift(x):
        return lax.ppermute(x, "x", [(i, (i + 1) % count) for i in range(count)])

    def partial(x):
        return lax.ppermute(x, "x", [(0, count - 1)])

    got = mapped(lambda x: (shift(x), partial(x)), value, line(), P("x"), P("x"))
    only = np.zeros_like(blocks(value))
    only[-1] = blocks(value)[0]
    return [local(each) for each in got], [np.roll(blocks(value), 1, 0).reshape(-1), only.reshape(-1)]


@case
def all_to_all() -> tuple[Any, Any]:
    count = jax.device_count()
    value = whole((count * count * 30_000,))
    got = mapped(lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True), value, line(), P("x"), P("x"))
    return local(got), value.reshape(count, count, -1).transpose(1, 0, 2).reshape(-1)


@case
def axes_of_a_mesh() -> tuple[Any, Any]:
    mesh = grid()
    value = whole((jax.device_count() * 8,))

    def body(x):
        return (lax.psum(x, "a"), lax.psum(x, "b"), lax.psum(x, ("a", "b")), lax.psum(x, ("b", "a")))

    got = mapped(body, value, mesh, P(("a", "b")), P(("a", "b")))
    parts = value.reshape(2, -1, 8)
    sums = [parts.sum(0, keepdims=True), parts.sum(1, keepdims=True), parts.sum((0, 1), keepdims=True)]
    wanted = [np.broadcast_to(each, parts.shape).reshape(-1) for each in [*sums, sums[-1]]]
    return [local(each) for each in got], wanted


# Both halves sum among themselves, before and after a sum over the whole that has groups of the same first devices.
@case
def parts_of_the_devices() -> tuple[Any, Any]:
    count = jax.device_count()
    halves = jax.devices()[: count // 2], jax.devices()[count // 2 :]
    got, wanted = [], []
    for turn in range(3):
        for half in halves:
            if any(device.process_index == jax.process_index() for device in half):
                value = whole((len(half) * 5,)) + turn
                got.append(mapped(lambda x: lax.psum(x, "x"), value, line(half), P("x"), P()).addressable_data(0))
                wanted.append(value.reshape(len(half), -1).sum(0))
        if turn == 1:
            value = whole((count * 5,))
            got.append(mapped(lambda x: lax.psum(x, "a"), value, grid(), P(("a", "b")), P("b")).addressable_data(0))
            b = [*grid().devices.flat].index(jax.local_devices()[0]) % (count // 2)
            wanted.append(value.reshape(2, count // 2, 5).sum(0)[b])
    return got, wanted


# The branch that has a group of its own is taken in the third execution only.
@case
def a_group_of_a_branch() -> tuple[Any, Any]:
    mesh = grid()
    value = whole((jax.device_count() * 4,))

    def body(x: Any, wants: Any) -> Any:
        return lax.cond(wants, lambda x: lax.psum(x, "b"), lambda x: lax.psum(x, "a"), x)

    step = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(P(("a", "b")), P()), out_specs=P(("a", "b")), check_vma=False)
    )
    parts = value.reshape(2, -1, 4)
    got, wanted = [], []
    for wants in (False, False, True, False):
        got.append(local(step(placed(value, mesh, P(("a", "b"))), wants)))
        total = parts.sum(1 if wants else 0, keepdims=True)
        wanted.append(np.broadcast_to(total, parts.shape).reshape(-1))
    return got, wanted


# The group of one device has no sum of its own by which XLA would ask for its communicator.
@case
def groups_of_unlike_sizes() -> tuple[Any, Any]:
    count = jax.device_count()
    value = whole((count * 4,))
    groups = [[0], [*range(1, count)]]
    got = mapped(lambda x: lax.psum(x, "x", axis_index_groups=groups), value, line(), P("x"), P("x"))
    rest = np.tile(blocks(value)[1:].sum(0), count - 1)
    return local(got), np.concatenate([blocks(value)[0], rest])


# Two threads of each process, which begin in another order in every other process.
@case
def groups_of_threads() -> tuple[Any, Any]:
    found: dict[int, Any] = {}

    def run(part: int) -> None:
        devices = jax.devices()[part::2][::-1]
        if any(device.process_index == jax.process_index() for device in devices):
            value = whole((len(devices) * 3,))
            found[part] = mapped(lambda x: lax.psum(x, "x"), value, line(devices), P("x"), P()).addressable_data(0)

    threads = [threading.Thread(target=run, args=(part,)) for part in (0, 1)]
    for thread in threads if jax.process_index() % 2 else threads[::-1]:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    total = whole((jax.device_count() // 2 * 3,)).reshape(-1, 3).sum(0)
    mine = [part for part in (0, 1) if {*jax.devices()[part::2]} & {*jax.local_devices()}]
    return [found.get(part) for part in mine], [total for _ in mine]


@case
def no_transfers_allowed() -> tuple[Any, Any]:
    value = whole((jax.device_count() * 4,))
    backwards = line(jax.devices()[::-1])  # a group that no other case has
    array = placed(value, backwards, P("x"))
    step = jax.jit(jax.shard_map(lambda x: lax.psum(x, "x"), mesh=backwards, in_specs=P("x"), out_specs=P()))
    jax.config.update("jax_transfer_guard", "disallow_explicit")
    try:
        total = step(array)
    finally:
        jax.config.update("jax_transfer_guard", "allow")
    return total.addressable_data(0), blocks(value).sum(0)


@case
def loops_and_many_at_once() -> tuple[Any, Any]:
    value = whole((jax.device_count() * 100,))

    def body(x):
        return lax.scan(lambda c, _: (lax.pmean(c, "x") + 1, None), x, None, length=10)[0]

    step = jax.jit(jax.shard_map(body, mesh=line(), in_specs=P("x"), out_specs=P("x"), check_vma=False))
    array = placed(value, line(), P("x"))
    results = [step(array) for _ in range(40)]
    return [local(each) for each in results[-2:]], [np.tile(blocks(value).mean(0) + 10, jax.device_count())] * 2


@case
def half_precision() -> tuple[Any, Any]:
    count = jax.device_count()
    value = whole((count * count * 50,), np.float16)

    def body(x: Any) -> Any:
        scattered = lax.psum_scatter(x.reshape(50, count), "x", scatter_dimension=1)
        return lax.psum(x, "x"), lax.pmax(x, "x"), lax.all_gather(scattered, "x", axis=1)

    got = mapped(body, value, line(), P("x"), P())
    total = blocks(value).sum(0)
    return [each.addressable_data(0) for each in got], [total, blocks(value).max(0), total.reshape(50, count)]


# XLA keeps what such a program gathers from itself.
@case
def a_program_of_one_device() -> tuple[Any, Any]:
    value = whole((5,))
    mesh = line(jax.local_devices()[:1])
    step = jax.shard_map(lambda x: lax.all_gather(x, "x"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return jax.jit(step)(value), value[None]


@case
def host_utilities() -> tuple[Any, Any]:
    multihost_utils.sync_global_devices("here")
    got = multihost_utils.process_allgather(np.array([jax.process_index()])).reshape(-1)
    one = multihost_utils.broadcast_one_to_all(np.array([7 + jax.process_index()]))
    return [got, one], [np.arange(jax.process_count()), np.array([7])]


def main() -> None:
    jax.distributed.initialize()
    for name, function in CASES.items():
        try:
            got, wanted = function()
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), got, wanted)
            found = ""
        except Exception as error:
            found = f"{type(error).__name__}: {error}"[:2000]
        jobs.report(name, error=found)


if __name__ == "__main__":
    main()
