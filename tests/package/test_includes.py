"""The C++: which folder includes which, no circles between files, and no class that is called like another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = re.compile(r"_test\.cc$|_fuzz\.cc$|/(testing|fake|emulation|simulation|simulated|simulated_system)/")
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "cc").rglob("*")
    if path.suffix in (".h", ".cc", ".cu", ".cuh")
}
PRODUCT = {name: text for name, text in SOURCES.items() if not TESTS.search(name)}

# The folders of cc that the product's code in each may include; all may include base.
MAY_INCLUDE = {
    "base": "",
    "kernels": "",
    "program": "",
    "search": "",
    "simulate": "",
    "testbed": "",
    "transport": "",
    "transport/crypto": "",
    "transport/fabric": "transport transport/crypto",
    "transport/local": "transport",
    "transport/rails": "transport",
    "transport/shm": "transport",
    "transport/tcp": "transport transport/crypto",
    "transport/udp": "transport transport/crypto",
    "executor/threads": "",
    "executor/decide": "executor/threads program transport",
    "executor/calls": "executor/decide executor/threads kernels",
    "executor/local": "executor/calls executor/decide executor/threads kernels program",
    "executor/sites": "executor/calls executor/decide executor/threads kernels program transport",
    "executor/messages": "executor/calls executor/decide executor/sites executor/threads kernels program transport",
    "executor": "executor/calls executor/decide executor/local executor/messages executor/sites executor/threads "
    "kernels program transport",
    "backend": "",
    "ffi": "executor executor/calls executor/decide executor/sites executor/threads kernels program transport "
    "transport/crypto transport/fabric transport/local transport/rails transport/shm transport/tcp transport/udp",
    "ffi/sites": "executor/calls executor/decide executor/local executor/sites ffi kernels program",
    "ffi/handlers": "executor/calls ffi ffi/sites kernels",
    "ffi/api": "backend executor executor/calls executor/decide executor/sites ffi kernels program search simulate",
    "gpu/kernels": "kernels",
    "gpu/executor": "executor/calls executor/threads gpu/kernels kernels program",
    "gpu/nccl": "executor/calls gpu/executor gpu/kernels kernels program",
    "gpu/ffi": "executor/calls executor/threads ffi gpu/executor gpu/kernels gpu/nccl kernels program",
}


def includes(text: str) -> set[str]:
    return {*re.findall(r'#include "(cc/[^"]+)"', text)}


def folder(name: str) -> str:
    return str(Path(name).parent.relative_to("cc"))


@pytest.mark.parametrize("name", sorted({folder(source) for source in PRODUCT}))
def test_a_folder_includes_only_what_it_may(name: str) -> None:
    may = {*MAY_INCLUDE[name].split(), "base", name}
    for source, text in PRODUCT.items():
        if folder(source) == name:
            others = {other for other in includes(text) if folder(other) not in may}
            assert not others, f"{source} includes {sorted(others)}"


def test_no_circle_between_folders_or_files() -> None:
    folders = {name: {*others.split()} | {"base"} - {name} for name, others in MAY_INCLUDE.items()}
    assert {*TopologicalSorter(folders).static_order()} == {*MAY_INCLUDE}
    files = {name: includes(text) for name, text in SOURCES.items()}
    assert {*TopologicalSorter(files).static_order()} >= {*SOURCES}


def classes(text: str) -> Iterator[tuple[str, ...]]:
    """The classes that a file defines, each with the classes around it."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', "", text, flags=re.DOTALL)
    head = re.compile(
        r"(?P<open>\b(?:class|struct|union|enum(?: class)?)\s+(?:alignas\([^()]*\)\s*)?(?P<name>[\w:]+)(?:\s+final)?"
        r"(?:\s*:[^;{}()]*)?\s*\{)|\{|\}"
    )
    around: list[str] = []  # "" for braces of anything else
    for found in head.finditer(text):
        if found["open"]:
            around += [found["name"]]
            yield tuple(name for name in around if name)
        elif found[0] == "{":
            around += [""]
        else:
            around.pop()


def test_no_two_classes_have_one_name() -> None:
    """But for those within other classes, whose names begin with these."""
    places: dict[str, list[str]] = {}
    for source, text in PRODUCT.items():
        for name in classes(text):
            if len(name) == 1:
                places.setdefault(name[0], []).append(source)
    assert len(places) > 200
    assert {name: sources for name, sources in places.items() if len(sources) > 1} == {}
