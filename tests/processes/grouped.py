"""A program for several processes: sums in groups that are data, beside what lax makes of them in the same job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import train
from jaxcomm.collectives.grouped import _in_lax, group_sum
from jaxcomm.errors import JaxcommError, MismatchError, translated

RANKS, ALIKE = P("data"), P()


class Job:
    """The mesh of all devices, and arrays on it."""

    def __init__(self) -> None:
        self.ranks = jax.device_count()
        self.mesh = jax.make_mesh((self.ranks,), ("data",), axis_types=(AxisType.Auto,))
        half = self.ranks // 2
        self.rows = [
            [0] * self.ranks,
            [rank % 2 for rank in range(self.ranks)],
            [half + rank // 2 for rank in range(self.ranks)],  # pairs
            [*range(self.ranks)],  # everybody alone
            [rank // (self.ranks - 1) for rank in range(self.ranks)],  # one alone
            [self.ranks - 1, *[1] * (self.ranks - 2), self.ranks - 1],  # the first with the last
        ]

    def array(self, full: Any, spec: Any = RANKS) -> jax.Array:
        full = np.asarray(full)
        return jax.make_array_from_callback(full.shape, NamedSharding(self.mesh, spec), lambda index: full[index])

    def tree(self) -> dict[str, jax.Array]:
        random = np.random.default_rng(0)
        return {
            "kernel": self.array(random.integers(-9, 9, (self.ranks * 3, 40_000)).astype(np.float32)),
            "bias": self.array(random.integers(-9, 9, self.ranks).astype(np.float32)),
            "half": self.array(jnp.asarray(random.integers(-8, 8, (self.ranks, 3, 2)), jnp.bfloat16)),
            "steps": self.array(random.integers(0, 9, (self.ranks, 1)).astype(np.int32)),
        }

    def step(self, body: Callable[..., Any], groups: Any = ALIKE) -> Any:
        return jax.jit(jax.shard_map(body, mesh=self.mesh, in_specs=(RANKS, groups), out_specs=RANKS, check_vma=False))


def ours(x: Any, row: jax.Array) -> Any:
    return group_sum(x, row, "data")


def laxs(x: Any, row: jax.Array) -> Any:
    leaves, tree = jax.tree.flatten(x)
    return tree.unflatten(_in_lax(row, *leaves, axes=("data",))[1:])


def assert_equal(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        for shard, same in zip(one.addressable_shards, other.addressable_shards, strict=True):
            np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(same.data))


def sums(job: Job) -> None:
    """One compiled step for all divisions, large and small, several times each."""
    mine, theirs = job.step(ours), job.step(laxs)
    for x in (job.tree(), {"bias": job.tree()["bias"]}):
        for row in job.rows * 3:
            groups = job.array(np.array(row, np.int32), ALIKE)
            assert_equal(mine(x, groups), theirs(x, groups))
    assert mine._cache_size() == 2


def scans(job: Job) -> None:
    """A loop in one step reads another row each time."""
    table = job.array(np.array(job.rows * 5, np.int32), ALIKE)

    def over(add: Callable[..., Any]) -> Any:
        def body(x: Any, row: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(lambda leaf: leaf % 101, add(x, row)), None

        return job.step(lambda x, table: jax.lax.scan(body, x, table)[0])

    x = {"steps": job.tree()["steps"], "bias": job.tree()["bias"]}
    assert_equal(over(ours)(x, table), over(laxs)(x, table))


def averages(job: Job) -> None:
    """Trains with such groups: each rank ends with the mean over its group."""
    iterations = [[[*range(0, job.ranks, 2)], [*range(1, job.ranks, 2)]], [[0], [*range(1, job.ranks)]]]
    average = train.divide_and_shuffle(iterations, "data")
    step = job.step(lambda x, number: average(x, number))
    for number in range(4):
        found = step(job.array(np.arange(job.ranks, dtype=np.float32)), job.array(np.int32(number), ALIKE))
        for shard in found.addressable_shards:
            group = next(group for group in iterations[number % 2] if shard.index[0].start in group)
            np.testing.assert_allclose(np.asarray(shard.data), np.mean(group), rtol=1e-6)


def buckets(job: Job) -> None:
    """A call for each array averages to the bits of one call for all, and has its own statistics."""
    iterations = [[[*range(0, job.ranks, 2)], [*range(1, job.ranks, 2)]], [[0], [*range(1, job.ranks)]]]
    found = []
    for nbytes in (None, 1):
        jaxcomm.reset_stats()
        average = train.divide_and_shuffle(iterations, "data", bucket_bytes=nbytes)
        step = job.step(lambda x, number, average=average: average(x, number))
        found.append(
            jax.block_until_ready([step(job.tree(), job.array(np.int32(number), ALIKE)) for number in range(2)])
        )
    assert_equal(*found)
    names = sorted(site["name"] for site in jaxcomm.stats() if site["calls"])
    assert names == [f"group_sum bucket {number} of 4" for number in range(1, 5)], names


def mistakes(job: Job) -> None:
    """A row that one rank alone brings is an error on all of them, and the next step works."""
    step = job.step(lambda x, rows: group_sum(x, rows[0], "data"), RANKS)
    x = job.array(np.ones(job.ranks, np.float32))
    right = np.zeros((job.ranks, job.ranks), np.int32)
    wrong = right.copy()
    wrong[1, 0] = 1
    try:
        with translated():
            jax.block_until_ready(step(x, job.array(wrong)))
        raise AssertionError("the step succeeded")
    except MismatchError as error:
        assert error.groups[1] == tuple(wrong[1].tolist()), error
        assert [row for rank, row in error.groups.items() if rank != 1] == [(0,) * job.ranks], error
    wrong[1, 0] = job.ranks
    try:
        with translated():
            jax.block_until_ready(step(x, job.array(wrong)))
        raise AssertionError("the step succeeded")
    except JaxcommError as error:
        assert f"rank 1 says that rank 0 is in group {job.ranks}; groups are 0 to " in str(error), error
    for shard in step(x, job.array(right)).addressable_shards:
        assert np.asarray(shard.data) == job.ranks


def statistics(job: Job) -> None:
    """One entry for all groups, in which ranks of other groups are unknown."""
    jaxcomm.reset_stats()
    step, x = job.step(ours), {"bias": job.tree()["bias"]}
    for _ in range(2):
        jax.block_until_ready(step(x, job.array(np.array(job.rows[1], np.int32), ALIKE)))
    [site] = [site for site in jaxcomm.stats() if site["calls"]]
    assert (site["name"], site["axes"], site["plan"]) == ("group_sum", "data", "groups")
    assert (site["ranks"], site["bytes"], site["calls"], site["failed"]) == (job.ranks, 4, 2, 0)
    here = {device.id for device in jax.local_devices()}
    known = {job.rows[1][rank] for rank, device in enumerate(job.mesh.devices) if device.id in here}
    for arrivals in site["arrivals"]:
        assert [seconds is not None for seconds in arrivals] == [group in known for group in job.rows[1]]
    print(jaxcomm.stats())


if __name__ == "__main__":
    jax.distributed.initialize()
    job = Job()
    for case in (sums, scans, averages, buckets, mistakes, statistics):
        case(job)
        print("done:", case.__name__, flush=True)
