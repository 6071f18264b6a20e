"""The directions of imports between packages, and no circles between modules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jaxcomm"
MODULES = {
    ".".join(("jaxcomm", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

# The packages and root modules that each may import; all may import EVERYBODY_MAY.
MAY_IMPORT = {
    "arrivals": "distributed dump ffi jax_compat report",
    "cp_sat": "",
    "schedules": "cp_sat ffi",
    "program": "schedules",
    "files": "",
    "distributed": "ffi jax_compat statistics",
    "plan": "ffi program schedules files profile",
    "profile": "ffi files records",
    "records": "",
    "statistics": "ffi files profile records report",
    "metrics": "ffi statistics",
    "dump": "distributed ffi files profile statistics",
    "ffi": "",
    "initialize": "auto_plan collectives distributed ffi jax_compat plan",
    "backend": "auto_plan collectives distributed ffi jax_compat schedules",
    "auto_plan": "collectives distributed ffi jax_compat measure plan profile records schedules statistics",
    "collectives": "arrivals distributed dump ffi jax_compat plan profile program schedules statistics watch",
    "lax": "collectives",
    "nnx": "collectives",
    "equinox": "collectives",
    "elastic": "distributed jax_compat",
    "gpu": "arrivals collectives distributed ffi jax_compat plan profile program schedules",
    "measure": "collectives distributed ffi gpu jax_compat plan profile program schedules files",
    "simulate": "ffi plan profile program schedules",
    "planner": "cp_sat ffi files plan profile program schedules simulate",
    "testbed": "ffi files plan",
    "train": "collectives distributed ffi measure plan planner profile",
    "report": "ffi plan profile records schedules simulate",
    "cli": "auto_plan backend collectives distributed ffi files gpu measure plan planner profile program report "
    "schedules simulate testbed train watch",
    "jax_compat": "",
    "watch": "jax_compat statistics",
    "jaxcomm": "backend collectives elastic equinox initialize jax_compat lax metrics nnx plan planner profile report "
    "schedules statistics train",
}
EVERYBODY_MAY = {"environment", "errors", "log"}


def imports(module: str) -> set[str]:
    """The modules of ours that a module imports, at once, later, or for its types only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else str(node.module) for name in names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(MODULES[module].read_text()))
    return {name for name in found if name in MODULES} - {module}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@pytest.mark.parametrize("name", sorted({package(module) for module in MODULES} - EVERYBODY_MAY))
def test_a_package_imports_only_what_it_may(name: str) -> None:
    may = {*MAY_IMPORT[name].split(), *EVERYBODY_MAY, name, "jaxcomm"}
    for module in MODULES:
        if package(module) == name:
            others = {other for other in imports(module) if package(other) not in may}
            assert not others, f"{module} imports {sorted(others)}"


def test_no_circle_between_modules() -> None:
    graph = {module: imports(module) for module in MODULES if module != "jaxcomm"}
    assert {*TopologicalSorter(graph).static_order()} == {*MODULES}


def test_no_circle_between_packages() -> None:
    graph = {name: {*others.split(), *EVERYBODY_MAY} for name, others in MAY_IMPORT.items()}
    assert {*TopologicalSorter(graph).static_order()} == {*MAY_IMPORT, *EVERYBODY_MAY}


def test_sums_on_cpus_import_no_other_back_end() -> None:
    script = """
        import sys, jax, jax.numpy as jnp, jaxcomm, jaxcomm.train
        from jax.sharding import PartitionSpec as P
        x = jnp.ones(4096)
        drop = jaxcomm.train.Drop(0.5, segment_bytes=64)
        scatter = lambda x, axis: jaxcomm.psum_scatter(x, axis, tiled=True)
        for call in jaxcomm.psum, scatter, lambda x, axis: jaxcomm.psum(x, axis, drop=drop):
            mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
            step = jax.shard_map(lambda x: call(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data"),
                                 check_vma=False)
            jax.block_until_ready(jax.jit(step)(x))
        print(sum(site["calls"] for site in jaxcomm.stats()) > 0)
        print([name for name in sys.modules if name.startswith(("jaxcomm.gpu", "jaxcomm.distributed"))])
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split("\n") == ["True", "[]", ""], done.stderr


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
