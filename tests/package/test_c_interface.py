"""The core's C functions and structs: Python and C++ declare the same."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.ffi import arguments
from jaxcomm.ffi.core import Core, Text
from jaxcomm.ffi.cpu import ARRIVALS, CPU
from jaxcomm.gpu.core import CUDA
from jaxcomm.testbed.packet_switch import _LIBRARY

CC = Path(__file__).parents[2] / "cc"
SOURCES = {path: path.read_text() for path in CC.rglob("*") if path.suffix in (".h", ".cc")}
CORES = {"ffi": CPU, "gpu": CUDA, "testbed": _LIBRARY}
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "JaxcommText": Text,
    **{each.__name__: each for each in arguments.Struct.__subclasses__()},
}
NUMBERS = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
}
MOST = 8  # parameters


def functions() -> dict[str, tuple[str, list[str]]]:
    """For each exported function, its folder in cc and the types of its parameters."""
    found = {}
    for path, text in SOURCES.items():
        for name, parameters in re.findall(r"JAXCOMM_EXPORT int jaxcomm_(\w+)\(([^)]*)\)", text):
            types = [re.sub(r"\s*\w+$", "", each.strip()) for each in parameters.split(",")]
            folder = path.relative_to(CC).parts[0]
            if folder not in CORES:  # an example in a comment
                continue
            found[f"{folder} {name}"] = (folder, types)
    return found


FUNCTIONS = functions()


def fits(declared: str, used: Any) -> bool:
    """Whether a type of ctypes is the one that C++ declares."""
    pointee = declared.removeprefix("const ").removesuffix("*")
    if not declared.endswith("*"):
        return used in (NUMBERS.get(declared), STRUCTS.get(declared))
    if pointee in STRUCTS:
        return used is ctypes.POINTER(STRUCTS[pointee])
    numbers = [ctypes.POINTER(NUMBERS[pointee])] if pointee in NUMBERS else []
    return used in (ctypes.c_char_p, ctypes.c_void_p, *numbers)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_python_declares_the_parameters_of_c_functions(name: str) -> None:
    folder, types = FUNCTIONS[name]
    declared: dict[str, Any] = CORES[folder]._functions
    function = name.split()[1]
    if folder == "ffi" and function not in declared:
        pytest.fail(f"jaxcomm/ffi/cpu.py lacks {function}")
    used = [*declared[function], ctypes.POINTER(Text)]
    assert len(used) == len(types) <= MOST
    for each, given in zip(types, used, strict=True):
        assert fits(each, given), f"{function}: C++ has {each}, Python {given}"


@pytest.mark.parametrize("core", CORES)
def test_every_function_of_python_is_exported(core: str) -> None:
    library: Core = CORES[core]
    shared = {"failure", *ARRIVALS} if core == "gpu" else set()  # the CUDA core has cc/ffi's
    exported = {name.split()[1] for name, (folder, _) in FUNCTIONS.items() if folder == core}
    assert {*library._functions} - shared == exported


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_structs_have_the_fields_of_c_plus_plus(name: str) -> None:
    (body,) = {
        found for text in SOURCES.values() for found in re.findall(rf"^struct {name} {{\n(.*?)^}};", text, re.M | re.S)
    }
    fields = re.findall(r"^\s*(?:const )?([\w:]+\*?) (?:const )?(\w+);", re.sub("const ", "", body), re.M)
    used: list[tuple[str, Any]] = [*STRUCTS[name]._fields_]  # type: ignore[arg-type]
    assert [field for _, field in fields] == [field for field, _ in used]
    for (declared, field), (_, given) in zip(fields, used, strict=True):
        assert fits(declared, given), f"{name}.{field}: C++ has {declared}, Python {given}"
