"""Makes an already loaded jaxlib load an MPI library, as jaxlib does when it is imported.

jaxlib reads MPITRAMPOLINE_LIB in a function that no header declares. The function runs once, when jaxlib is loaded. The
symbol table in jaxlib's file has the function's offset in the file. This process's list of mapped files has the
addresses of the file's parts. The offset and these addresses give the function's address.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import re
import struct
from pathlib import Path
from typing import Final, NamedTuple

import jax

from jaxcomm import jax_compat

_INITIALIZE, _IS_DONE = "mpitrampoline_init", "did_init_mpitrampoline"
_SYMBOL_TABLE: Final = 2  # SHT_SYMTAB of ELF
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")  # indices in Elf64_Shdr: 1 type, 3 address, 4 offset, 5 size, 6 link
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # indices in Elf64_Sym: 0 name, 3 section, 4 address


class _Place(NamedTuple):
    address: int  # the virtual address that the file states
    offset: int  # the offset in the file


def load(variables: dict[str, str]) -> None:
    """Loads the library given by the variables, for the client that JAX will make.

    Args:
      variables: the result of `jaxlib_variables.variables`; set in this process's environment.

    Raises:
      LookupError: JAX has already made its client, or jaxlib's function cannot be found in jaxlib's file.
      OSError: the library cannot be loaded.
    """
    library, is_loaded = variables["MPITRAMPOLINE_LIB"], _mapped(variables["MPITRAMPOLINE_LIB"])
    if is_loaded and jax.config.jax_cpu_collectives_implementation == "mpi":  # type: ignore[attr-defined]
        return
    if jax_compat.has_devices():
        raise LookupError("JAX has its devices already: call jaxcomm.backend.use() before their first use")
    if not is_loaded:
        initialize, is_done = _addresses()
        ctypes.CDLL(library)  # raises OSError on failure, while jaxlib would end the process
        os.environ.update(variables)
        ctypes.c_ubyte.from_address(is_done).value = 0
        ctypes.CFUNCTYPE(None)(initialize)()
    os.environ.update(variables)
    jax.config.update("jax_cpu_collectives_implementation", "mpi")


def _addresses() -> tuple[int, int]:
    """The address of the function that loads the library, and of the byte that records whether the function has run."""
    spec = importlib.util.find_spec("jaxlib")
    path = os.path.realpath(Path(spec.origin).parent / "libjax_common.so") if spec and spec.origin else ""
    try:
        places = _places(path, [_INITIALIZE, _IS_DONE])
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise LookupError(f"{path} cannot be read: {error}") from error
    function = places[_INITIALIZE]
    for start, size, offset in _mapped(path):
        if offset <= function.offset < offset + size:
            base = start + function.offset - offset - function.address
            return base + function.address, base + places[_IS_DONE].address
    raise LookupError(f"jaxlib is not loaded from {path}: call jaxcomm.backend.use() before `import jax`")


def _mapped(path: str) -> list[tuple[int, int, int]]:
    """The mappings of the file in this process: (address, size in bytes, offset in the file) of each mapping."""
    line = re.compile(rf"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ +{re.escape(os.path.realpath(path))}")
    found = filter(None, map(line.fullmatch, Path("/proc/self/maps").read_text().splitlines()))
    bounds = [[int(number, 16) for number in each.groups()] for each in found]
    return [(start, end - start, offset) for start, end, offset in bounds]


def _places(path: str, names: list[str]) -> dict[str, _Place]:
    """The addresses and file offsets of symbols, including local symbols, in a 64-bit ELF file."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\2\1":
            raise ValueError("no ELF file of 64 bits, little-endian")
        [begin], [size, count] = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION.unpack_from(data, begin + i * size) for i in range(count)]
        table = next((each for each in sections if each[1] == _SYMBOL_TABLE), None)
        if table is None:
            raise LookupError(f"{path} has no symbols: call jaxcomm.backend.use() before `import jax`")
        found = {}
        for name in names:
            symbol = _symbol(data, table, sections[table[6]], name)
            section = sections[symbol[3]]
            found[name] = _Place(symbol[4], section[4] + symbol[4] - section[3])
        return found


def _symbol(data: mmap.mmap, table: tuple[int, ...], strings: tuple[int, ...], name: str) -> tuple[int, ...]:
    end = strings[4] + strings[5]
    at = data.find(name.encode() + b"\0", strings[4], end)
    while at >= 0:  # the name may be the end of a longer name
        index = struct.pack("<I", at - strings[4])
        place = data.find(index, table[4], table[4] + table[5])
        while place >= 0:
            if (place - table[4]) % _SYMBOL.size == 0:
                return _SYMBOL.unpack_from(data, place)
            place = data.find(index, place + 1, table[4] + table[5])
        at = data.find(name.encode() + b"\0", at + 1, end)
    raise LookupError(f"this jaxlib has no {name}: call jaxcomm.backend.use() before `import jax`")
