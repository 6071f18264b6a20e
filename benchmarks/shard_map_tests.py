"""JAX's own tests of shard_map, with six collectives swapped for jaxcomm's.

    python benchmarks/shard_map_tests.py FILE core|xla [ARGUMENTS OF pytest]

FILE is tests/shard_map_test.py of JAX's source at the tag of the installed JAX. In a copy of FILE, `lax.psum`, `pmean`,
`pmax`, `pmin`, `psum_scatter` and `all_gather` become jaxcomm's. All of them run on the core, or by XLA's permutes. The
tests use eight CPU devices, and need absl-py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SWAPPED = "psum|pmean|pmax|pmin|psum_scatter|all_gather"


def main(file: str, executor: str, *arguments: str) -> int:
    """Runs the tests in a process of their own, and returns pytest's exit status."""
    text = re.sub(rf"\b(?:jax\.)?lax\.({SWAPPED})\b", r"jaxcomm.\1", Path(file).read_text())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "shard_map_test.py")
        copy.write_text(re.sub("^import jax$", "import jax\nimport jaxcomm", text, flags=re.MULTILINE))
        environment = {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "32", "JAXCOMM_EXECUTOR": executor}
        words = ["-m", "pytest", "-q", "-p", "no:warnings", "-p", "no:cacheprovider", str(copy), *arguments]
        return subprocess.run(
            [sys.executable, *words], cwd=folder, env=os.environ | environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
