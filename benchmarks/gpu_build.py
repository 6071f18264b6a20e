"""The section of gpu.py that brings the CUDA core up to date with its sources, beside the Python that runs it.

python benchmarks/gpu_build.py RESULT.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_rows import Row, tell

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build/gpu"


def build() -> Iterator[Row]:
    """As an editable installation does it: both cores end up in jaxcomm/ffi."""
    yield ["step", "seconds"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where wheels put CMake
    settings = {"Python_EXECUTABLE": sys.executable, "SKBUILD_STATE": "editable", "CMAKE_BUILD_TYPE": "Release"}
    configure = ["cmake", "-S", str(ROOT), "-B", str(FOLDER), "-DJAXCOMM_CUDA=ON"]
    configure += [f"-D{name}={value}" for name, value in settings.items()]
    steps = {"configure": configure, "build": ["cmake", "--build", str(FOLDER), "--parallel", str(os.cpu_count())]}
    for name, command in steps.items():
        start = time.monotonic()
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        yield [name, f"{time.monotonic() - start:.1f}"]
    size = (ROOT / "jaxcomm/ffi/jaxcomm_cuda13.so").stat().st_size
    yield [f"jaxcomm_cuda13.so: {size / 1e6:.1f} MB", ""]


if __name__ == "__main__":
    tell(build(), Path(sys.argv[1]))
