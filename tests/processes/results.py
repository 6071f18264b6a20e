"""A program for several processes: functions of our collectives, and whether the same of lax's agree with them.

Words: "lax", or "alone" for ours without lax's; paths of plans for the job's ranks, under which the sums run again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.train import Drop
from tests.processes import jobs

TOLERANCE = {"bfloat16": 3e-2, "float16": 3e-3, "float32": 1e-5, "complex64": 1e-5, "float64": 1e-12}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
SIZES = [0, 1, 1237, 16 << 10, 3 << 18]

Step = Callable[[Any], Any]


class Case(NamedTuple):
    """A function of `ops`, jax.lax or jaxcomm, and of a rank's operand, that returns a tree of arrays; the operand."""

    body: Callable[[Any, Any], Any]
    operand: Any


class Cases:
    """The tables."""

    def __init__(self) -> None:
        devices = np.array(jax.devices())
        n = self.ranks = len(devices)
        auto = (AxisType.Auto,)
        self.mesh = Mesh(devices, ("d",), axis_types=auto)
        self.permuted = Mesh(np.roll(devices[::-1], 1), ("d",), axis_types=auto)
        self.grid = Mesh(devices.reshape(n // 2, 2), ("a", "b"), axis_types=auto * 2)
        self.grid_across = Mesh(devices.reshape(2, n // 2).T, ("a", "b"), axis_types=auto * 2)

    def array(self, shape: tuple[int, ...], dtype: Any = np.float32, mesh: Mesh | None = None) -> jax.Array:
        """So many rows of this shape for each rank, sharded over all axes of the mesh."""
        mesh = mesh or self.mesh
        full = np.random.default_rng(len(shape)).integers(0, 5, (self.ranks * shape[0], *shape[1:]))
        full = (full - (np.dtype(dtype).kind not in "ub") * 1.3).astype(dtype)
        sharding = NamedSharding(mesh, P(mesh.axis_names))
        return jax.make_array_from_callback(full.shape, sharding, lambda index: full[index])

    def step(self, body: Callable[..., Any], mesh: Mesh | None = None, **options: Any) -> Any:
        """The jitted function of each rank's operands, of whose results each rank's own is returned."""
        mesh = mesh or self.mesh
        spec = P(mesh.axis_names)
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False), **options)

    def together(self, cases: dict[str, Case], mesh: Mesh | None = None) -> Callable[[Any], dict[str, Any]]:
        """A function of `ops` that runs all of them in one step, which is compiled once."""
        operands = {name: case.operand for name, case in cases.items()}

        def run(ops: Any) -> dict[str, Any]:
            return self.step(lambda x: {name: case.body(ops, x[name]) for name, case in cases.items()}, mesh)(operands)

        return run

    def sums(self) -> dict[str, Case]:
        """Those that follow plans."""

        def each(dtype: str) -> Case:
            reductions = ["psum", "pmean"] + ["pmax", "pmin"] * (not dtype.startswith("complex"))
            return Case(lambda ops, x: [getattr(ops, name)(x, "d") for name in reductions], self.array((37,), dtype))

        def total(ops: Any, x: Any) -> Any:
            return ops.psum(x, "d"), ops.psum(jax.tree.map(lambda leaf: leaf + leaf, x), "d")

        leaves = {f"leaf {i}": self.array((i % 7, 3), ["float32", "int8", "bfloat16"][i % 3]) for i in range(1, 40)}
        return {
            **{dtype: each(dtype) for dtype in ["bool", *INTEGERS, *FLOATS]},
            **{f"{size} elements": Case(total, self.array((size,))) for size in SIZES},
            "many leaves": Case(total, leaves),
        }

    def collectives(self) -> dict[str, Case]:
        n = self.ranks

        def scatter(ops: Any, x: Any) -> Any:
            whole = [ops.psum_scatter(jnp.tile(x, (n, 1)), "d", scatter_dimension=0, tiled=True)]
            return [*whole, ops.psum_scatter(jnp.tile(x, (1, n)), "d", scatter_dimension=1, tiled=True)]

        def gather(ops: Any, x: Any) -> Any:
            return [ops.all_gather(x, "d", axis=axis, tiled=tiled) for tiled in (False, True) for axis in (0, 1, -1)]

        def large(ops: Any, x: Any) -> Any:
            return ops.all_gather(x, "d", tiled=True), ops.psum_scatter(jnp.tile(x, n), "d", tiled=True)

        def groups(*groups: list[int]) -> Case:
            def body(ops: Any, x: Any) -> Any:
                return [getattr(ops, name)(x, "d", axis_index_groups=[*groups]) for name in ("psum", "pmax")]

            return Case(body, self.array((5,)))

        def lossy(ops: Any, x: Any) -> Any:
            if ops is lax:
                return lax.psum(x, "d"), lax.psum(x, "d", axis_index_groups=pairs)
            drop = Drop(0.3, segment_bytes=1024, priorities={"float64": 0, "bfloat16": 2})
            network, late = (dataclasses.replace(drop, policy=policy) for policy in ("network", "deadline"))
            return ops.psum(x, "d", drop=network), ops.psum(x, "d", drop=late, axis_index_groups=pairs)

        pairs = [[i, i + 1] for i in range(0, n, 2)]
        gradients = {dtype: self.array((60_001,), dtype) for dtype in ("float32", "bfloat16", "float64", "int32")}

        def grouped_gather(ops: Any, x: Any) -> Any:
            return ops.all_gather(x, "d", axis_index_groups=[[*range(0, n, 2)], [*range(1, n, 2)]], tiled=True)

        return {
            **{
                f"psum_scatter, {dtype}": Case(scatter, self.array((3, 5), dtype))
                for dtype in ("float32", "int32", "bfloat16")
            },
            **{
                f"all_gather, {dtype}": Case(gather, self.array((3, 5), dtype))
                for dtype in ("float32", "int8", "complex64", "bool")
            },
            "large gather and scatter": Case(large, self.array((100_003,))),
            "groups of one size": groups([*range(1, n, 2)], [*range(0, n, 2)]),
            "groups of unlike sizes": groups([n - 1, *range(1, n - 1)], [0]),
            "groups of unlike sizes across": groups([0, n - 2, n - 1], [*range(1, n - 2)]),
            "a network that may lose some": Case(lossy, gradients),
            "all_gather in groups": Case(grouped_gather, self.array((5,))),
        }

    def over_a_grid(self, grid: Mesh) -> dict[str, Case]:
        def sums(ops: Any, x: Any) -> Any:
            return [ops.psum(x * 2, "a"), ops.psum(x, "b"), ops.psum(x, ("a", "b")), ops.psum(x, ("b", "a"))]

        def gather(ops: Any, x: Any) -> Any:
            return [ops.all_gather(x, axes) for axes in ("a", "b", ("a", "b"), ("b", "a"))]

        ids = f"{grid.device_ids.tolist()}"
        x = self.array((4, 3), mesh=grid)
        return {f"sums over {ids}": Case(sums, x), f"all_gather over {ids}": Case(gather, x)}

    def over_permuted_devices(self) -> dict[str, Case]:
        def body(ops: Any, x: Any) -> Any:
            return [ops.psum(x * lax.axis_index("d"), "d"), ops.all_gather(x, "d")]

        return {"permuted devices": Case(body, self.array((4, 3), mesh=self.permuted))}

    def transformed(self) -> dict[str, Case]:
        """Functions of functions."""
        n = self.ranks

        def grad_inside(ops: Any, x: Any) -> Any:
            return jax.grad(lambda x: jnp.sum(jnp.sin(ops.psum(x, "d"))))(x)

        def mapped(ops: Any, x: Any) -> Any:
            return jax.vmap(lambda x: [ops.psum(x, "d"), ops.all_gather(x, "d")], in_axes=1, out_axes=1)(x)

        def scanned(ops: Any, x: Any) -> Any:
            return lax.scan(lambda c, _: (ops.pmean(c * x, "d") + x, ops.pmax(c, "d")), x, None, length=7)

        def rematerialised(ops: Any, x: Any) -> Any:
            return jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(ops.psum(jnp.sin(x), "d")))))(x)

        def branches(ops: Any, x: Any) -> Any:
            for i in range(2):
                x = lax.cond(i == jnp.int32(x[0, 0] * 0), lambda x: ops.psum(x, "d"), lambda x: ops.pmean(x, "d"), x)
            return x

        def copied(ops: Any, x: Any) -> Any:
            inner = jax.jit(lambda x: ops.psum(x, "d") / n)
            return inner(inner(x) + x) + inner(2 * x)

        bodies = {
            "gradients inside": grad_inside,
            "vmap": mapped,
            "scan": scanned,
            "remat": rematerialised,
            "cond": branches,
            "a function called three times": copied,
        }
        return {name: Case(body, self.array((3, 5))) for name, body in bodies.items()}

    def steps(self) -> dict[str, Step]:
        """Functions of `ops` with steps of their own."""
        n = self.ranks

        def losses(ops: Any) -> Any:
            def loss(w: Any, x: Any) -> Any:
                return ops.psum(jnp.sum(jnp.tanh(x @ w) ** 2), "d")

            body = jax.shard_map(loss, mesh=self.mesh, in_specs=(P(), P("d")), out_specs=P())
            return jax.jit(jax.value_and_grad(body, argnums=(0, 1)))(np.ones((5, 2)) / 9, self.array((3, 5)))

        def interleaved(ops: Any) -> Any:
            one, other = (self.step(lambda x, f=f: f(x, "d") / n + x) for f in (ops.psum, ops.pmin))
            x = self.array((3, 5))
            for _ in range(5):
                x = other(one(x))
            return one(x)

        def ahead(ops: Any) -> Any:
            step, x = self.step(lambda x: ops.pmean(x, "d") * 0.9 + 1), self.array((1000,))
            for _ in range(60):
                x = step(x)
            return x

        def donated(ops: Any) -> Any:
            step, x = self.step(lambda x: ops.pmean(x, "d"), donate_argnums=0), self.array((3, 5))
            for _ in range(3):
                x = step(x)
            return x

        def partially_manual(ops: Any) -> Any:
            def body(x: Any, rows: Any, scalar: Any) -> Any:
                return ops.psum(jnp.sin(x), "a"), ops.all_gather(x, "a"), ops.psum(rows, "a"), ops.psum(scalar, "a")

            specs, out_specs = (P("a"), P("a"), P()), (P(), P("a"), P(), P())
            step = jax.shard_map(body, mesh=self.grid, in_specs=specs, out_specs=out_specs, axis_names={"a"})
            full = np.arange(8.0 * n, dtype=np.float32).reshape(n, 8)
            x, rows = (
                jax.make_array_from_callback(full.shape, NamedSharding(self.grid, spec), lambda index: full[index])
                for spec in (P("a", "b"), P(("a", "b")))
            )
            return jax.jit(step)(x, rows, np.float32(3))

        def compiled_earlier(ops: Any) -> Any:
            step, before = (self.step(lambda x, f=f: f(x, "d") * 3) for f in (ops.psum, ops.pmax))
            x = self.array((3, 5))
            if jax.process_index() == 1:
                step.lower(x).compile()
                step.lower(x).compile()
            return before(x), step(x), step(x)

        def gradients(ops: Any) -> Any:
            def loss(w: Any, x: Any) -> Any:
                return jnp.mean(jnp.tanh(x @ w["w"] + w["b"]) ** 2)

            def plain(w: Any, x: Any) -> Any:
                return lax.pmean(jax.value_and_grad(loss)(lax.pcast(w, "d", to="varying"), x), "d")

            specs = P(), P("d")
            manual = jax.shard_map(plain, mesh=self.mesh, in_specs=specs, out_specs=P())
            step = manual if ops is lax else jaxcomm.value_and_grad(loss, "d", in_specs=specs, mesh=self.mesh)
            return jax.jit(step)({"w": np.ones((5, 2)) / 9, "b": np.ones(2)}, self.array((3, 5)))

        return {
            "gradients": losses,
            "two functions in turns": interleaved,
            "sixty steps ahead": ahead,
            "donation": donated,
            "automatic axes": partially_manual,
            "compiled earlier in one process": compiled_earlier,
            "value_and_grad": gradients,
        }


def in_place(cases: Cases) -> dict[str, bool]:
    """For each operand of a sum, whether the result is stored in the operand's memory."""
    steps = {
        "argument": cases.step(lambda x: jaxcomm.psum(x, "d")),
        "donated argument": cases.step(lambda x: jaxcomm.psum(x, "d"), donate_argnums=0),
        "computed value": cases.step(lambda x: jaxcomm.psum(x * 2, "d")),
        "computed value among arguments": cases.step(lambda x: jaxcomm.psum((x, x * 2), "d")),
    }
    x = cases.array((3, 5))
    return {name: "output_operand_alias<" in step.lower(x).as_text() for name, step in steps.items()}


def ours(run: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    with jaxcomm.errors.translated():
        return jax.block_until_ready(run(jaxcomm))


def values(result: Any) -> list[list[np.ndarray]]:
    """Of each leaf what this process's devices have."""
    return [[np.asarray(shard.data) for shard in leaf.addressable_shards] for leaf in jax.tree.leaves(result)]


def digests(result: Any) -> list[list[str]]:
    return [[hashlib.sha256(part.tobytes()).hexdigest()[:16] for part in parts] for parts in values(result)]


def difference(found: Any, expected: Any) -> str:
    """In what they differ by more than rounding, on this process's devices."""
    try:
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert jax.typeof(one) == jax.typeof(other), f"{jax.typeof(one)} is not {jax.typeof(other)}"
            wide, tolerance = np.complex128, TOLERANCE.get(other.dtype.name, 1e-12 * (other.dtype.kind in "fc"))
            for part, same in zip(values(one)[0], values(other)[0], strict=True):
                np.testing.assert_allclose(part.astype(wide), same.astype(wide), rtol=tolerance, atol=tolerance)
    except Exception as mistake:
        return f"{type(mistake).__name__}: {mistake}"[:3000]
    return ""


def main(beside: str, plans: list[str]) -> None:
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    cases = Cases()
    sums = cases.together(cases.sums())
    others = cases.together(cases.collectives() | cases.transformed())
    runs = [
        sums,
        others,
        cases.together(cases.over_a_grid(cases.grid), cases.grid),
        cases.together(cases.over_a_grid(cases.grid_across), cases.grid_across),
        cases.together(cases.over_permuted_devices(), cases.permuted),
        *(lambda ops, name=name, step=step: {name: step(ops)} for name, step in cases.steps().items()),
    ]
    jobs.report("in place", **in_place(cases))
    by_lax: dict[str, Any] = {}

    def report(prefix: str, found: dict[str, Any]) -> None:
        for name, result in found.items():
            compared = {}
            if name in by_lax:
                compared = {"error": difference(result, by_lax[name]), "lax": digests(by_lax[name])}
            jobs.report(prefix + name, ours=digests(result), **compared)

    for run in runs:
        found = ours(run)
        if beside == "lax":
            by_lax |= jax.block_until_ready(run(lax))
        report("", found)
    for i, plan in enumerate(plans):
        followed = []
        with jaxcomm.use_plan(plan):
            for run in [sums] + [others] * (jaxcomm.plan.load(plan).halves is not None):
                jaxcomm.reset_stats()
                report(f"plan {i}: ", ours(run))
                followed.append({f"{site['name']}, {site['plan']}" for site in jaxcomm.stats() if site["calls"]})
        jobs.report(f"plan {i}", plans=[sorted(calls) for calls in followed])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
