"""Everything that only a machine with an NVIDIA GPU can show, in one command and under ten minutes.

    python benchmarks/gpu.py                  # runs every section that can run here and writes benchmarks/gpu.md
    python benchmarks/gpu.py --dry-run        # says which would run, and why others would not
    python benchmarks/gpu.py --only exact     # one section

It needs Python 3.11 or newer, JAX with CUDA and NumPy, and downloads nothing. The core must be there:
`JAXCOMM_CUDA=ON make setup` builds it where NVIDIA's wheels are; elsewhere carry `jaxcomm/ffi/jaxcomm_cuda13.so` and
`jaxcomm/ffi/libjaxcomm_cpu.so` along, built on any machine of the same architecture and C library. Each section is a
process of its own with a deadline, so that one that fails or hangs does not take the others along.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = Path(__file__).resolve().parent / "gpu_sections.py"

Result = dict[str, Any]


class Section(NamedTuple):
    """What it shows, how long it may take, and the program that wraps it."""

    title: str
    seconds: int
    wrapper: tuple[str, ...] = ()


ALL = {
    "exact": Section("Every schedule, 8 virtual ranks, bit for bit against NumPy", 180),
    "graph": Section("The same under a captured CUDA graph, replayed", 60),
    "late": Section("One virtual rank 2 ms late: time after its arrival", 60),
    "deadline": Section("A rank that misses the deadline is named, and the next call works", 60),
    "kernels": Section("Reduction and mask kernels beside a copy", 90),
    "memcheck": Section("compute-sanitizer memcheck, small sizes", 70, ("compute-sanitizer", "--tool=memcheck")),
    "racecheck": Section("compute-sanitizer racecheck, small sizes", 70, ("compute-sanitizer", "--tool=racecheck")),
}


def main() -> None:
    """Runs the sections and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", choices=ALL)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/gpu.md")
    args = parser.parse_args()
    names = [args.only] if args.only else list(ALL)
    off = why_off()
    if args.dry_run:
        for name in names:
            reason = off or missing(ALL[name])
            print(f"{name}: {ALL[name].title}: {f'would not run: {reason}' if reason else 'would run'}")
        return
    if off:
        sys.exit(f"benchmarks/gpu.py: {off}")
    results = {}
    for name in names:
        results[name] = run(name)
        print(f"{name}: {results[name]['state']}, {results[name]['seconds']:.1f} s", flush=True)
    args.out.write_text(report(results, shlex.join(["python", *sys.argv])))
    sys.exit(any(result["state"] not in ("passed", "left out") for result in results.values()))


def why_off() -> str | None:
    """Why no section can run here. Asked in another process, so that this one holds no GPU memory."""
    command = [sys.executable, "-c", "from jaxcomm.ffi import cuda; print(cuda.why_off() or '')"]
    asked = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    return asked.stdout.strip() or None if asked.returncode == 0 else asked.stderr.strip().splitlines()[-1]


def missing(section: Section) -> str | None:
    """The program that a section needs and this machine lacks."""
    needs = section.wrapper[:1]
    return f"{needs[0]} is not installed" if needs and shutil.which(needs[0]) is None else None


def run(name: str) -> Result:
    """Runs a section in a process of its own and returns what it found."""
    section = ALL[name]
    if reason := missing(section):
        return {"state": "left out", "seconds": 0.0, "rows": [[reason]], "device": None}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [*section.wrapper, sys.executable, str(SECTIONS), "exact" if section.wrapper else name, str(out)]
        extra = {"JAXCOMM_GPU_SMALL": "1"} if section.wrapper else {}
        start = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment() | extra, capture_output=True, text=True, timeout=section.seconds
            )
        except subprocess.TimeoutExpired:
            return {
                "state": f"stopped after {section.seconds} s",
                "seconds": section.seconds,
                "rows": [],
                "device": None,
            }
        seconds = time.monotonic() - start
        found = json.loads(out.read_text()) if out.exists() else {"rows": [], "device": None}
        if done.returncode == 0:
            return {"state": "passed", "seconds": seconds, **found}
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-3:]
        return {"state": "failed", "seconds": seconds, **found, "rows": [*found["rows"], *([line] for line in last)]}


def environment() -> dict[str, str]:
    """The sections share the GPU's memory with nobody, but allocate only what they need."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def report(results: dict[str, Result], command: str) -> str:
    """The Markdown of all sections' results."""
    devices = sorted({result["device"] for result in results.values() if result["device"]})
    lines = ["# On a GPU", "", f"`{command}` on {', '.join(devices) or 'no device'}, {time.strftime('%Y-%m-%d')}.", ""]
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
