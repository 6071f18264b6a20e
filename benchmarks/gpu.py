"""Everything that only a machine with an NVIDIA GPU can show, in one command and under ten minutes.

    python benchmarks/gpu.py                  # runs every section that can run here and writes benchmarks/gpu.md
    python benchmarks/gpu.py --dry-run        # says which would run, and why others would not
    python benchmarks/gpu.py --only exact     # one section

It needs Python 3.11 or newer, JAX with CUDA and NumPy, and downloads nothing. Where NVIDIA's compiler and CMake are
installed beside this Python, it brings the core up to date first; elsewhere carry `jaxcomm/ffi/jaxcomm_cuda13.so`,
`jaxcomm/ffi/libjaxcomm_cpu.so` and, for what XLA lends, `jaxcomm/ffi/jaxcomm_cuda13_xla.so` along, built on any machine
of the same architecture and C library. Each section is a process of its own with a deadline and tells its rows as it
finds them, so that one that fails, hangs or crashes takes neither the others along nor what it had found. Times have
targets; one that misses is marked and fails nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
BUDGET = 590.0  # seconds of all sections
CANNOT = 77  # a section's exit code where it finds that it cannot run; the last line that it says is the reason

Result = dict[str, Any]


class Section(NamedTuple):
    """What it shows, how long it may take, the script that shows it, the program around that, and its environment.

    The script is called with these arguments and the file that its result goes into: {"rows": [...], "device": name}.
    """

    title: str
    seconds: int
    script: str
    arguments: tuple[str, ...]
    wrapper: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


def _sanitized(tool: str) -> Section:
    wrapper = ("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9")
    return Section(
        f"compute-sanitizer {tool}, small sizes", 90, "gpu_sections.py", ("exact",), wrapper, {"JAXCOMM_GPU_SMALL": "1"}
    )


def _by_nccl(part: str, seconds: int, title: str) -> Section:
    # It ends its ranks by itself, before it would be ended.
    return Section(f"Processes and NCCL: {title}", seconds + 10, "gpu_nccl.py", (part, str(seconds)))


_CAPTURED = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"

ALL = {
    "build": Section("The CUDA core, from its sources", 240, "gpu_build.py", ()),
    "exact": Section("Every schedule, 8 virtual ranks, bit for bit against NumPy", 150, "gpu_sections.py", ("exact",)),
    "types": Section(
        "Every element type and reduction, bit for bit against NumPy",
        90,
        *("gpu_sections.py", ("types",), (), {"JAX_ENABLE_X64": "1"}),
    ),
    "graph": Section(
        "Every schedule in a CUDA graph that XLA captures and replays",
        90,
        *("gpu_sections.py", ("graph",), (), {"XLA_FLAGS": _CAPTURED}),
    ),
    "late": Section("One virtual rank 2 ms late: time after its arrival", 60, "gpu_sections.py", ("late",)),
    "deadline": Section("A rank that misses the deadline is named", 60, "gpu_sections.py", ("deadline",)),
    "kernels": Section("Reduction and mask kernels beside a copy", 90, "gpu_kernels.py", ()),
    "memcheck": _sanitized("memcheck"),
    "racecheck": _sanitized("racecheck"),
    "devices": Section("psum over the GPUs of this process", 90, "gpu_devices.py", ()),
    # It ends its processes by itself, before it would be ended.
    "processes": Section("psum over 4 processes that share a GPU, by CUDA IPC", 70, "gpu_processes.py", ("60",)),
    "nccl bits": _by_nccl("bits", 110, "every schedule and dtype, bit for bit as its program adds"),
    "nccl psum": _by_nccl("psum", 90, "jaxcomm.psum between processes that are told to be on different hosts"),
    "nccl psum lent": _by_nccl("lent", 90, "the same over communicators that XLA lends"),
    "nccl lost": _by_nccl("lost", 50, "a rank that does not come is named, and the others go on without it"),
    "nccl groups": _by_nccl("groups", 50, "sums of the groups of a period, on communicators that were split before"),
    "nccl rails": _by_nccl("rails", 50, "one call over two rails, a communicator each"),
    "nccl times": _by_nccl("times", 80, "median of a call, the launch and the wait for its end included"),
    "nccl order": _by_nccl("order", 50, "ranks that make different calls are told so"),
    # The last: it leaves kernels on the GPU that end with their processes alone.
    "nccl lost lent": _by_nccl("lent lost", 60, "a rank that does not come to one of those is named"),
}


def main() -> None:
    """Runs the sections and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", choices=ALL)
    parser.add_argument("--out", type=Path, default=HERE / "gpu.md")
    args = parser.parse_args()
    names = [args.only] if args.only else list(ALL)
    if args.dry_run:
        off = why_off()
        for name in names:
            reason = lacks(ALL[name]) or (off if name != "build" else None)
            print(f"{name}: {ALL[name].title}: {f'would not run: {reason}' if reason else 'would run'}")
        return
    end = time.monotonic() + BUDGET
    results: dict[str, Result] = {}
    for name in names:
        if name != "build" and (reason := why_off()):
            sys.exit(f"benchmarks/gpu.py: {reason}")
        results[name] = run(name, end - time.monotonic())
        print(f"{name}: {results[name]['state']}, {results[name]['seconds']:.1f} s", flush=True)
        args.out.write_text(report(results, shlex.join(["python", *sys.argv])))
    sys.exit(any(result["state"].startswith(("failed", "stopped")) for result in results.values()))


@functools.cache
def why_off() -> str | None:
    """Why no section can run here. Asked once, in another process, so that this one holds no GPU memory."""
    command = [sys.executable, "-c", "from jaxcomm.ffi import cuda; print(cuda.why_off() or '')"]
    asked = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, timeout=120)
    return asked.stdout.strip() or None if asked.returncode == 0 else asked.stderr.strip().splitlines()[-1]


def lacks(section: Section) -> str | None:
    """What a section needs and this machine has not."""
    needs = section.wrapper[:1]
    if needs and shutil.which(needs[0]) is None:
        return f"{needs[0]} is not installed"
    if section.script == "gpu_build.py" and (missing := _toolchain_lacks()):
        return f"{missing} is not installed; the core was brought along"
    return None


def _toolchain_lacks() -> str | None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("cmake", path=beside) is None:
        return "CMake"
    spec = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    places = (spec.submodule_search_locations or ()) if spec else ()
    return None if any(Path(place, "bin", "nvcc").exists() for place in places) else "NVIDIA's compiler"


def run(name: str, left: float) -> Result:
    """Runs a section in a process of its own, for so many seconds at most, and returns what it found."""
    section = ALL[name]
    if reason := lacks(section):
        return _left_out(reason)
    if left < 10:
        return _left_out(f"the {BUDGET:.0f} s of all sections were over")
    limit = min(section.seconds, left)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [*section.wrapper, sys.executable, str(HERE / section.script), *section.arguments, str(out)]
        start = time.monotonic()
        code, said = _end_with_children(command, environment(section.environment), limit)
        found = {"seconds": time.monotonic() - start, "rows": [], "device": None}
        found |= json.loads(out.read_text()) if out.exists() else {}
    last = [line for line in said.splitlines() if line.strip()][-5:]
    if code == CANNOT:
        return _left_out(last[-1])
    if code == 0:
        missed = sum("miss" in row for row in found["rows"])
        return found | {"state": f"passed, {missed} targets missed" if missed else "passed"}
    state = f"stopped after {limit:.0f} s" if code is None else f"failed with {code}"
    return found | {"state": state, "rows": [*found["rows"], *([line] for line in last)]}


def _left_out(reason: str) -> Result:
    return {"state": f"left out: {reason}", "seconds": 0.0, "rows": [], "device": None}


def _end_with_children(command: list[str], env: dict[str, str], limit: float) -> tuple[int | None, str]:
    """The exit code, or None if time was up, and what it said; none of its processes is left."""
    running = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = running.communicate(timeout=limit)
        return running.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        return None, running.communicate()[0]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The sections share the GPU's memory with nobody, but allocate only what they need."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), extra.get("XLA_FLAGS")]))
    ours = {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags}
    return {**os.environ, **extra, **ours}


def report(results: Mapping[str, Result], command: str) -> str:
    """The Markdown of all sections' results."""
    devices = sorted({result["device"] for result in results.values() if result["device"]})
    total = sum(result["seconds"] for result in results.values())
    lines = ["# On a GPU", ""]
    lines += [f"`{command}` on {', '.join(devices) or 'no device'}, {time.strftime('%Y-%m-%d')}, {total:.0f} s.", ""]
    for name, result in results.items():
        lines += [f"## {ALL[name].title}", "", f"{name}: {result['state']}, {result['seconds']:.1f} s.", ""]
        if result["rows"]:
            width = max(map(len, result["rows"]))
            rows = [[*map(str, row), *[""] * (width - len(row))] for row in result["rows"]]
            rows.insert(1, ["---"] * width)
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
