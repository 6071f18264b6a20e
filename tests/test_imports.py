"""Who imports whom: the packages' directions, and no circles between modules."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxcomm"
MODULES = {
    ".".join(("jaxcomm", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

# What each package, or module beside the packages, may import of the others; all may import errors, log and values.
MAY_IMPORT = {
    "schedules": "",
    "program": "schedules",
    "topology": "schedules",
    "files": "",
    "curve": "",
    "processes": "jax_compat",
    "plan": "program schedules topology files curve",
    "profile": "ffi topology files",
    "ffi": "files report",
    "communicator": "plan program schedules ffi",
    "collectives": "communicator ffi gpu jax_compat plan profile",
    "lax": "collectives",
    "gpu": "collectives communicator ffi plan planner processes profile program schedules",
    "measure": "collectives communicator ffi gpu profile files",
    "simulate": "plan profile program schedules topology",
    "planner": "curve files plan profile program schedules simulate topology",
    "distributed": "collectives communicator ffi files jax_compat profile",
    "train": "collectives communicator ffi plan planner profile",
    "report": "plan profile schedules topology",
    "testbed": "files",
    "cli": "collectives distributed ffi files gpu measure plan planner profile program report schedules simulate testbed train",
    "jax_compat": "",
    "jaxcomm": "collectives communicator ffi lax plan planner profile report schedules train",
}
EVERYBODY_MAY = {"errors", "log", "values"}


def imports(module: str, *, at_once: bool) -> set[str]:
    """The modules of ours that a module imports: anywhere, or only when it is itself imported."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and at_once:
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and at_once:
            return
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
            others = {other for other in imports(module, at_once=False) if package(other) not in may}
            assert not others, f"{module} imports {sorted(others)}"


def test_no_module_waits_for_itself_to_be_imported() -> None:
    graph = {module: imports(module, at_once=True) for module in MODULES}
    assert len([*TopologicalSorter(graph).static_order()]) == len(MODULES)
