"""The CUDA core as it was built: what it needs, what it shows, what its kernels became. None of it needs a GPU."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxcomm import ffi
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import segments
from jaxcomm.ffi.core import Core
from jaxcomm.gpu import core

LIBRARY = Path(core.__file__).parent / "jaxcomm_cuda13.so"
ARCHITECTURES = {"sm_80", "sm_90", "sm_100", "sm_120"}

built = pytest.mark.skipif(not core.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")


@pytest.mark.skipif(os.environ.get("JAXCOMM_CUDA") != "ON", reason="JAXCOMM_CUDA is not ON")
def test_it_was_built_where_it_was_asked_for():
    assert core.is_built()


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@built
def test_it_needs_no_driver_no_nccl_and_no_path():
    dynamic = output("readelf", "-d", LIBRARY)
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\.so", dynamic)
    assert set(needed) <= {"libstdc++", "libgcc_s", "libm", "libc", "libdl", "librt", "libpthread"} | {
        name for name in needed if name.startswith("ld-linux")
    }
    assert "PATH)" not in dynamic


@built
def test_it_shows_its_own_names_only():
    names = [line.split()[-1] for line in output("nm", "-D", "--defined-only", LIBRARY).splitlines()]
    assert {"JaxcommImportance", "JaxcommNccl", "JaxcommFusedExecute"} <= set(names)
    assert [name for name in names if not name.lower().startswith("jaxcomm")] == []


@built
def test_without_a_gpu_it_loads_and_says_so_in_one_line():
    ctypes.CDLL(str(LIBRARY))
    why = core.why_off()
    assert why is None or re.fullmatch(r"no CUDA device \(.+\)|JAX has no CUDA backend; .+", why), why


def test_an_installation_without_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(core.CUDA, "path", tmp_path / "missing.so")
    assert core.why_off() == "jaxcomm was built without CUDA"


def test_a_file_that_is_no_library_is_an_error_with_a_cure(monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no ELF")
    monkeypatch.setattr(core, "CUDA", Core("CUDA core", broken, {}, cure="build it here"))
    with pytest.raises(JaxcommError, match=r"CUDA core cannot be loaded: .*broken\.so.*\n  Cure: build it here"):
        core.register.__wrapped__()


@built
def test_a_step_on_cpus_does_not_load_it():
    script = (
        "import jax.numpy as jnp\n"
        "from jaxcomm.ffi import segments\n"
        "segments.scale(jnp.ones(8), jnp.ones(1), 32).block_until_ready()\n"
        "print('jaxcomm_cuda13' in open('/proc/self/maps').read())"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert result.stdout.strip() == "False"


@built
def test_its_calls_are_registered_and_lowered_without_a_device():
    core.register()
    x, kept, factors = jnp.ones(64), jnp.arange(1, dtype=jnp.int32), jnp.ones(2)

    def masks(x, kept, factors):
        packed = segments.pack(segments.scale(x, factors, 128), kept, 128)
        return segments.importance(x, 128), segments.unpack(packed, kept, 64, 128)

    text = jax.jit(masks).trace(x, kept, factors).lower(lowering_platforms=("cuda",)).as_text()
    assert [name for name in ffi.SEGMENTS if f"@jaxcomm_{name}(" in text] == ["importance"]  # XLA moves and scales


@pytest.fixture(scope="module")
def cuobjdump() -> Path:
    spec = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    tool = Path((spec.submodule_search_locations or [""])[0], "bin", "cuobjdump") if spec else Path("missing")
    if not tool.exists():
        pytest.skip("no cuobjdump; pip install 'jaxcomm[cuda13-build]' brings it")
    return tool


@built
def test_every_architecture_is_there_and_ptx_of_the_last(cuobjdump):
    assert set(re.findall(r"sm_\d+", output(cuobjdump, "--list-elf", LIBRARY))) == ARCHITECTURES
    assert set(re.findall(r"sm_\d+", output(cuobjdump, "--list-ptx", LIBRARY))) == {"sm_120"}


# The kernels by which gradients move, and how many there are of each: one for a type and a reduction; of importance the
# variants for aligned buffers, whose template argument is `true`: Lb1.
HOT = {"Reduce": 32, "Importance": 4, "Fused": 32}


def by_kernel(text: str) -> dict[str, list[str]]:
    """The output of cuobjdump about each hot kernel, once per architecture."""
    found: dict[str, list[str]] = {}
    parts = re.split(r"^\s*Function\s*:?\s*(\w+):?\s*$", text, flags=re.MULTILINE)
    for name, about in zip(parts[1::2], parts[2::2], strict=True):
        if re.search(r"\d(Fused|Reduce)Kernel|\dImportanceKernel\w*Lb1E", name):
            found.setdefault(name, []).append(about)
    for kind, count in HOT.items():
        assert sum(re.search(rf"\d{kind}Kernel", name) is not None for name in found) == count, kind
    return found


@built
def test_hot_kernels_spill_nothing_on_any_architecture(cuobjdump):
    for name, reports in by_kernel(output(cuobjdump, "--dump-resource-usage", LIBRARY)).items():
        assert len(reports) == len(ARCHITECTURES), name
        for report in reports:
            assert "STACK:0 " in report and "LOCAL:0 " in report, f"{name}: {report}"


@pytest.fixture(scope="module")
def sass(cuobjdump) -> dict[str, str]:
    """The machine code of each hot kernel for Hopper."""
    command = [cuobjdump, "-arch", "sm_90", "-sass", LIBRARY]
    path = os.pathsep.join([str(cuobjdump.parent), os.environ["PATH"]])  # where it looks for nvdisasm
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PATH": path}
    )
    return {name: code for name, (code,) in by_kernel(done.stdout).items()}


@built
def test_hot_kernels_move_16_bytes_at_once(sass):
    for name, code in sass.items():
        assert re.search(r"\bLDG\.E\S*\.128", code), name
        assert "ImportanceKernel" in name or re.search(r"\bSTG\.E\S*\.128", code), name


@built
def test_the_fused_executor_reads_what_others_wrote(sass):
    """No cache that is never invalidated hides a peer's stores, and flags order them for all GPUs."""
    fused = {name: code for name, code in sass.items() if "FusedKernel" in name}
    for name, code in fused.items():
        assert not re.search(r"\bLDG\.E\.128\S*\.CONSTANT", code), name
        assert re.search(r"\bLDG?\.E\.64\.STRONG\.SYS\b", code), name
        assert re.search(r"\bSTG?\.E\.64\.STRONG\.SYS\b", code), name
        assert re.search(r"\bMEMBAR\.SC\.SYS\b", code), name
