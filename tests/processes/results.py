"""A program for several processes: the same functions of lax's collectives and of ours, and whether they agree.

Words: paths of plans for the job's ranks, under which the sums run again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs

TOLERANCE = {"bfloat16": 3e-2, "float16": 3e-3, "float32": 1e-5, "complex64": 1e-5, "float64": 1e-12}
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
SIZES = [0, 1, 1237, 16 << 10, 3 << 18]

Case = Callable[[Any], Any]


class Cases:
    """The table; each case calls functions of `ops`, jax.lax or jaxcomm, and returns a tree of arrays."""

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

    def sums(self) -> dict[str, Case]:
        """Those that follow plans."""

        def each(dtype: str) -> Case:
            reductions = ["psum", "pmean"] + ["pmax", "pmin"] * (not dtype.startswith("complex"))
            return lambda ops: self.step(lambda x: [getattr(ops, name)(x, "d") for name in reductions])(
                self.array((37,), dtype)
            )

        def of_size(size: int) -> Case:
            return lambda ops: self.step(lambda x: ops.psum(x, "d"))(self.array((size,)))

        def tree(ops: Any) -> Any:
            leaves = {f"leaf {i}": self.array((i % 7, 3), ["float32", "int8", "bfloat16"][i % 3]) for i in range(1, 40)}
            return self.step(lambda x: ops.psum(x, "d"))(leaves)

        return {
            **{dtype: each(dtype) for dtype in ["bool", *INTEGERS, *FLOATS]},
            **{f"{size} elements": of_size(size) for size in SIZES},
            "many leaves": tree,
        }

    def collectives(self) -> dict[str, Case]:
        n = self.ranks

        def scatter(ops: Any) -> Any:
            def body(x: Any) -> Any:
                whole = [ops.psum_scatter(jnp.tile(x, (n, 1)), "d", scatter_dimension=0, tiled=True)]
                return [*whole, ops.psum_scatter(jnp.tile(x, (1, n)), "d", scatter_dimension=1, tiled=True)]

            return [self.step(body)(self.array((3, 5), dtype)) for dtype in ("float32", "int32", "bfloat16")]

        def gather(tiled: bool) -> Case:
            def body(ops: Any) -> Any:
                return lambda x: [ops.all_gather(x, "d", axis=axis, tiled=tiled) for axis in (0, 1, -1)]

            return lambda ops: [
                self.step(body(ops))(self.array((3, 5), dtype)) for dtype in ("float32", "int8", "complex64", "bool")
            ]

        def large(ops: Any) -> Any:
            def body(x: Any) -> Any:
                return ops.all_gather(x, "d", tiled=True), ops.psum_scatter(jnp.tile(x, n), "d", tiled=True)

            return self.step(body)(self.array((100_003,)))

        def groups(*groups: list[int]) -> Case:
            def body(ops: Any) -> Any:
                return lambda x: [getattr(ops, name)(x, "d", axis_index_groups=[*groups]) for name in ("psum", "pmax")]

            return lambda ops: self.step(body(ops))(self.array((5,)))

        def grouped_gather(ops: Any) -> Any:
            halves = [[*range(0, n, 2)], [*range(1, n, 2)]]
            body = lambda x: ops.all_gather(x, "d", axis_index_groups=halves, tiled=True)  # noqa: E731
            return self.step(body)(self.array((5,)))

        def over(grid: Mesh) -> Case:
            def body(ops: Any) -> Any:
                return lambda x: [
                    ops.psum(x * 2, "a"),
                    ops.psum(x, "b"),
                    ops.psum(x, ("a", "b")),
                    ops.psum(x, ("b", "a")),
                ]

            return lambda ops: self.step(body(ops), grid)(self.array((4, 3), mesh=grid))

        def gather_over(ops: Any) -> Any:
            body = lambda x: [ops.all_gather(x, axes) for axes in ("a", "b", ("a", "b"), ("b", "a"))]  # noqa: E731
            return [self.step(body, grid)(self.array((4, 3), mesh=grid)) for grid in (self.grid, self.grid_across)]

        def permuted(ops: Any) -> Any:
            body = lambda x: [ops.psum(x * lax.axis_index("d"), "d"), ops.all_gather(x, "d")]  # noqa: E731
            return self.step(body, self.permuted)(self.array((4, 3), mesh=self.permuted))

        return {
            "psum_scatter": scatter,
            "all_gather, stacked": gather(False),
            "all_gather, tiled": gather(True),
            "large gather and scatter": large,
            "groups of one size": groups([*range(1, n, 2)], [*range(0, n, 2)]),
            "groups of unlike sizes": groups([n - 1, *range(1, n - 1)], [0]),
            "groups of unlike sizes across": groups([0, n - 2, n - 1], [*range(1, n - 2)]),
            "all_gather in groups": grouped_gather,
            "grid": over(self.grid),
            "grid, other axis across": over(self.grid_across),
            "all_gather over a grid": gather_over,
            "permuted devices": permuted,
        }

    def steps(self) -> dict[str, Case]:
        n = self.ranks

        def losses(ops: Any) -> Any:
            def loss(w: Any, x: Any) -> Any:
                return ops.psum(jnp.sum(jnp.tanh(x @ w) ** 2), "d")

            body = jax.shard_map(loss, mesh=self.mesh, in_specs=(P(), P("d")), out_specs=P())
            return jax.jit(jax.value_and_grad(body, argnums=(0, 1)))(jnp.ones((5, 2)) / 9, self.array((3, 5)))

        def grad_inside(ops: Any) -> Any:
            body = lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(ops.psum(x, "d"))))(x)  # noqa: E731
            return self.step(body)(self.array((3, 5)))

        def mapped(ops: Any) -> Any:
            body = jax.vmap(lambda x: [ops.psum(x, "d"), ops.all_gather(x, "d")], in_axes=1, out_axes=1)
            return self.step(body)(self.array((3, 5)))

        def scanned(ops: Any) -> Any:
            def body(x: Any) -> Any:
                return lax.scan(lambda c, _: (ops.pmean(c * x, "d") + x, ops.pmax(c, "d")), x, None, length=7)

            return self.step(body)(self.array((3, 5)))

        def rematerialised(ops: Any) -> Any:
            body = jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(ops.psum(jnp.sin(x), "d")))))
            return self.step(body)(self.array((3, 5)))

        def branches(ops: Any) -> Any:
            def body(x: Any) -> Any:
                for i in range(2):
                    x = lax.cond(
                        i == jnp.int32(x[0, 0] * 0), lambda x: ops.psum(x, "d"), lambda x: ops.pmean(x, "d"), x
                    )
                return x

            return self.step(body)(self.array((3, 5)))

        def copied(ops: Any) -> Any:
            inner = jax.jit(lambda x: ops.psum(x, "d") / n)
            return self.step(lambda x: inner(inner(x) + x) + inner(2 * x))(self.array((3, 5)))

        def interleaved(ops: Any) -> Any:
            one, other = (self.step(lambda x, f=f: f(x, "d") / n) for f in (ops.psum, ops.pmin))
            x = self.array((3, 5))
            for _ in range(5):
                x = other(one(x) + x) + one(x)
            return x

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
            def body(x: Any) -> Any:
                return ops.psum(jnp.sin(x), "a"), ops.all_gather(x, "a")

            step = jax.shard_map(body, mesh=self.grid, in_specs=P("a"), out_specs=(P(), P("a")), axis_names={"a"})
            full = np.arange(8.0 * n, dtype=np.float32).reshape(n, 8)
            sharding = NamedSharding(self.grid, P("a", "b"))
            return jax.jit(step)(jax.make_array_from_callback(full.shape, sharding, lambda index: full[index]))

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
            return jax.jit(step)({"w": jnp.ones((5, 2)) / 9, "b": jnp.ones(2)}, self.array((3, 5)))

        return {
            "gradients": losses,
            "gradients inside": grad_inside,
            "vmap": mapped,
            "scan": scanned,
            "remat": rematerialised,
            "cond": branches,
            "a function called three times": copied,
            "two functions in turns": interleaved,
            "sixty steps ahead": ahead,
            "donation": donated,
            "automatic axes": partially_manual,
            "compiled earlier in one process": compiled_earlier,
            "value_and_grad": gradients,
        }


def compare(name: str, case: Case) -> None:
    """Reports whether both agree on this process's devices, and the digests of what each device has."""
    error = ""
    digests: dict[str, list[list[str]]] = {"ours": [], "lax": []}
    try:
        with jaxcomm.errors.translated():
            ours = jax.block_until_ready(jax.tree.leaves(case(jaxcomm)))
        theirs = jax.block_until_ready(jax.tree.leaves(case(lax)))
        for one, other in zip(ours, theirs, strict=True):
            assert jax.typeof(one) == jax.typeof(other), f"{jax.typeof(one)} is not {jax.typeof(other)}"
            mine, laxs = ([np.asarray(shard.data) for shard in leaf.addressable_shards] for leaf in (one, other))
            wide, tolerance = np.complex128, TOLERANCE.get(other.dtype.name, 1e-12 * (other.dtype.kind in "fc"))
            for part, expected in zip(mine, laxs, strict=True):
                np.testing.assert_allclose(part.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)
            for key, parts in (("ours", mine), ("lax", laxs)):
                digests[key].append([hashlib.sha256(part.tobytes()).hexdigest()[:16] for part in parts])
    except Exception as found:
        error = f"{type(found).__name__}: {found}"[:3000]
    jobs.report(name, error=error, **digests)


def main(plans: list[str]) -> None:
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    cases = Cases()
    for name, case in (cases.sums() | cases.collectives() | cases.steps()).items():
        compare(name, case)
    for i, plan in enumerate(plans):
        jaxcomm.reset_stats()
        with jaxcomm.use_plan(plan):
            for name, case in cases.sums().items():
                compare(f"plan {i}: {name}", case)
        jobs.report(f"plan {i}", plans=sorted({site["plan"] for site in jaxcomm.stats() if site["calls"]}))


if __name__ == "__main__":
    main(sys.argv[1:])
