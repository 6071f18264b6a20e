"""Writes a source file with the names that jaxlib looks up in an MPI library but mpi_functions.cc does not define.

    python unused_names.py NM LIBJAX_COMMON_SO mpi_functions.cc > unused.c

jaxlib looks up every `MPIABI_*` symbol when it is loaded, and terminates the process if one is missing. The symbol
table of jaxlib's library lists these symbols: a function is a pointer (`b`, 8 bytes), and a constant is a variable of 4
or 8 bytes (`d`).
"""

import re
import subprocess
import sys


def main() -> None:
    nm, library, source = sys.argv[1:]
    with open(source) as file:
        own = set(re.findall(r"\bMPIABI_\w+", file.read()))
    functions, constants = set(), {}
    for line in subprocess.check_output([nm, "-S", library], text=True, stderr=subprocess.DEVNULL).splitlines():
        fields = line.split()
        found = re.fullmatch(r"(MPIX?)(ABI)?_(\w+)", fields[3]) if len(fields) == 4 else None
        if found and found[2] and fields[2] in "bB":
            functions.add(f"{found[1]}ABI_{found[3]}")
        elif found and not found[2] and fields[2] in "dD":
            constants[f"{found[1]}ABI_{found[3]}"] = int(fields[1], 16)
    if len(functions) < 300 or len(constants) < 200:
        sys.exit(f"{library}: {len(functions)} functions and {len(constants)} constants of MPI; do not strip it.")
    print("#include <stdint.h>\nextern int jaxcomm_backend_unused(const char*);")
    print('#define SHOWN __attribute__((visibility("default")))')
    for value, (name, size) in enumerate(sorted(constants.items())):
        if name not in own:
            kind, at = ("int", 1000) if size == 4 else ("uintptr_t", 0x10000)
            print(f"SHOWN const {kind} {name} = {at + value};")
    for name in sorted(functions - own):
        print(f'SHOWN int {name}(void) {{ return jaxcomm_backend_unused("{name.replace("ABI", "", 1)}"); }}')


main()
