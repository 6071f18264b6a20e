"""Sends and receives between processes on one GPU: bits, groups, rails, times, a lost rank, going on without it.

    python benchmarks/gpu_nccl.py                        # four ranks; writes benchmarks/gpu_nccl.md
    python benchmarks/gpu_nccl.py --dry-run              # says what would run, or why nothing can
    python benchmarks/gpu_nccl.py --only bits --ranks 8

NCCL from 2.30.7 on lets several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE); older ones are made to believe that the
ranks are on hosts of their own. Both are experimental. Each part has ranks and a deadline of its own, so that one that
fails or hangs does not take the others along. Exits with 1 if a part fails, and with 2 if none can run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RANK = Path(__file__).resolve().parent / "gpu_nccl_rank.py"
SEVERAL_RANKS = (2, 30, 7)  # NCCL's version from which on they may share a GPU

sys.path.insert(0, str(ROOT))

from jaxcomm.ffi import cuda, nccl  # noqa: E402


class Part(NamedTuple):
    """What it shows, and how many seconds it may take."""

    title: str
    seconds: float


PARTS = {
    "bits": Part("Every schedule and dtype, bit for bit as its program adds", 120),
    "groups": Part("Sums of the groups of a period, on communicators that were split before", 60),
    "rails": Part("One call over two rails, a communicator each", 60),
    "times": Part("Median of a call, the launch and the wait for its end included", 90),
    "order": Part("Ranks that make different calls are told so", 60),
    "lost": Part("A rank that does not come is named, and the others go on without it", 60),
}


class Outcome(NamedTuple):
    """How a part ended, and what it found."""

    state: str
    seconds: float
    rows: list[list[str]]


def main() -> None:
    """Runs the parts and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/gpu_nccl.md")
    args = parser.parse_args()
    if args.ranks < 3:
        parser.error("--ranks must be at least 3: one is lost, and the others go on")
    names = [args.only] if args.only else list(PARTS)
    off = cuda.why_off() or nccl.why_off()
    if args.dry_run:
        for name in names:
            would = f"would be skipped: {off}" if off else f"would run, {PARTS[name].seconds:g} s at most"
            print(f"{name}: {PARTS[name].title}; {would}")
        return
    if off:
        print(f"benchmarks/gpu_nccl.py: {off}", file=sys.stderr)
        sys.exit(2)
    extra = environment(nccl.version())
    outcomes = {}
    for name in names:
        outcomes[name] = run(name, args.ranks, extra)
        print(f"{name}: {outcomes[name].state}, {outcomes[name].seconds:.1f} s")
        for row in outcomes[name].rows:
            print("", *row, sep="\t")
    setting = f"{args.ranks} ranks on one GPU, NCCL {'.'.join(map(str, nccl.version()))}"
    args.out.write_text(report(outcomes, setting))
    sys.exit(any(each.state != "passed" for each in outcomes.values()))


def environment(version: tuple[int, int, int]) -> list[dict[str, str]]:
    """What makes NCCL put several ranks on a GPU: for all ranks, then what differs for each is added by `of_rank`."""
    common = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_MODULE_LOADING": "EAGER"}
    if version >= SEVERAL_RANKS:
        return [common | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}]
    return [common | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}, {"NCCL_HOSTID": "host{rank}"}]


def of_rank(rank: int, extra: list[dict[str, str]]) -> dict[str, str]:
    """One rank's environment."""
    return {name: value.format(rank=rank) for part in extra for name, value in part.items()}


def run(name: str, ranks: int, extra: list[dict[str, str]], program: Path = RANK) -> Outcome:
    """Starts the ranks of a part and waits for their end, at most as long as it may take."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            command = [sys.executable, str(program), name, str(rank), str(ranks), str(folder)]
            with log.open("w") as out:
                running.append(
                    subprocess.Popen(command, env=os.environ | of_rank(rank, extra), stdout=out, stderr=out, cwd=ROOT)
                )
        late = _await(running, start + PARTS[name].seconds)
        rows: list[list[str]] = json.loads((folder / "rows").read_text()) if (folder / "rows").exists() else []
        for rank, (each, log) in enumerate(zip(running, logs, strict=True)):
            if each.returncode:
                last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
                rows.append([f"rank {rank} ended with {each.returncode}", " / ".join(last)])
    seconds = time.monotonic() - start
    failed = any(each.returncode for each in running)
    return Outcome("stopped at its deadline" if late else "failed" if failed else "passed", seconds, rows)


def _await(running: list[subprocess.Popen[bytes]], end: float) -> bool:
    """Whether some had to be ended because the time was up, and not because another had failed."""
    failed = False
    while any(each.poll() is None for each in running) and time.monotonic() < end:
        if not failed and any(each.poll() for each in running):
            failed, end = True, min(end, time.monotonic() + 10)  # the others will not get further
        time.sleep(0.05)
    late = [each for each in running if each.poll() is None]
    for each in late:
        each.kill()
        each.wait()
    return bool(late) and not failed


def report(outcomes: dict[str, Outcome], setting: str) -> str:
    """The Markdown of all parts' results."""
    lines = ["# Messages between processes on one GPU", ""]
    lines += [f"`python benchmarks/gpu_nccl.py`, {setting}, {time.strftime('%Y-%m-%d')}.", ""]
    for name, found in outcomes.items():
        lines += [f"## {PARTS[name].title}", "", f"{name}: {found.state}, {found.seconds:.1f} s.", ""]
        if found.rows:
            table: list[list[Any]] = [["what", "result"], ["---", "---"], *found.rows]
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
