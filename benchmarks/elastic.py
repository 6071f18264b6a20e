"""Kills processes of a training at random moments, restarts them, and reports how long the training stood still.

    python benchmarks/elastic.py --processes 4 --faults 200 --seed 1
    python benchmarks/elastic.py --processes 8 --faults 50 --way unchanged --transport tcp

`jaxcomm launch --restart` runs the training and starts killed processes again. Each process checks every sum. With
`--stops`, every fourth fault stops a process for a while instead of killing it. The table has medians and the longest
times, in seconds; the exit status is 1 if a sum was wrong or the training did not go on.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from elastic_job import MARK

LONGEST_S = 120.0  # time without a block after which the training counts as hung


class Event(NamedTuple):
    """A line of a process, or the launcher's line that it starts a process again."""

    process: int
    kind: str
    at: float
    about: dict[str, Any]


class Job:
    """A running training."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.end_file = folder / "end"
        words = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", options.processes, "--restart", 1_000_000]
        words += ["--transport", options.transport, "--devices-per-process", options.devices]
        words += ["--every-collective"] if options.way == "unchanged" else []
        words += [
            "--",
            sys.executable,
            Path(__file__).with_name("elastic_job.py"),
            options.way,
            options.state,
            self.end_file,
        ]
        environment = {**os.environ, "JAXCOMM_DEADLINE_S": "20"}
        self.running = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.events: list[Event] = []
        self.pids: dict[int, int] = {}
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self._arrived.put(line)
        self._arrived.put(None)

    def take(self, until: float) -> bool:
        """Takes events until a time. Returns False if the job has ended."""
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._arrived.get(timeout=left)
            except queue.Empty:
                return True
            if line is None:
                return False
            self.lines.append(line)
            if found := re.match(rf"\[ *(\d+)\] {MARK}(.*)", line):
                about = json.loads(found[2])
                process = int(found[1])
                self.pids[process] = about.pop("pid")
                self.events.append(Event(process, about.pop("kind"), about.pop("at"), about))
        return True

    def wait_for_block(self, after: float, members: int) -> bool:
        """Waits for a block with this number of members after a time."""
        limit = time.monotonic() + LONGEST_S
        while time.monotonic() < limit:
            for event in reversed(self.events):
                if event.at < after:
                    break
                if event.kind == "block" and len(event.about["members"]) >= members:
                    return True
            if not self.take(time.monotonic() + 0.05):
                return False
        return False


class Fault(NamedTuple):
    """A process that was killed or stopped."""

    process: int
    at: float
    is_stop: bool


def inflict(job: Job, options: argparse.Namespace, chance: random.Random) -> list[Fault]:
    """Kills or stops processes at random moments. At least one process is alive at any time."""
    faults: list[Fault] = []
    for number in range(options.faults):
        # Half of the faults come while processes rejoin.
        together = chance.random() < 0.5
        if not together and not job.wait_for_block(faults[-1].at if faults else 0.0, options.processes):
            break
        if not job.take(time.monotonic() + chance.uniform(0.05, 1.5)):
            break
        last = {event.process: event for event in job.events}
        alive = [process for process, event in last.items() if event.kind not in ("imported",)]
        alive = [process for process in alive if Path(f"/proc/{job.pids[process]}").exists()]
        if len(alive) < 2:
            continue
        process = chance.choice(alive)
        is_stop = options.stops and number % 4 == 3
        faults.append(Fault(process, time.monotonic(), is_stop))
        try:
            os.kill(job.pids[process], signal.SIGSTOP if is_stop else signal.SIGKILL)
            if is_stop:
                job.take(time.monotonic() + chance.uniform(0.1, 2.0))
                os.kill(job.pids[process], signal.SIGCONT)
        except ProcessLookupError:
            continue
    return faults


def times(job: Job, faults: list[Fault], processes: int) -> dict[str, list[float]]:
    """The times of each kind, for kills after which the training ran whole before the next fault."""
    found: dict[str, list[float]] = {}
    by_time = sorted(job.events, key=lambda event: event.at)
    bounds = [fault.at for fault in faults[1:]] + [float("inf")]
    for fault, end in zip(faults, bounds, strict=True):
        span = [event for event in by_time if fault.at <= event.at < end]
        blocks = [event for event in span if event.kind == "block"]
        whole = [
            event for event in blocks if len(event.about["members"]) == processes and event.process == fault.process
        ]
        if fault.is_stop or not whole:
            continue
        fewer = [event for event in blocks if fault.process not in event.about["members"]]
        failed = [event for event in span if event.kind == "failed" and event.process != fault.process]
        imported = [event for event in span if event.kind == "imported" and event.process == fault.process]
        caught = [event for event in span if event.kind == "caught up" and event.process == fault.process]
        entries = {
            "kill to the survivors' failed call": failed[0].at - fault.at if failed else None,
            "kill to the first block without it": fewer[0].at - fault.at if fewer else None,
            "kill to its first block": whole[0].at - fault.at,
            "its start (imports done) to its first block": whole[0].at - imported[0].at if imported else None,
            "state to the newcomer": caught[0].about["seconds"] if caught else None,
        }
        for name, seconds in entries.items():
            if seconds is not None:
                found.setdefault(name, []).append(seconds)
    for event in by_time:
        if event.kind == "end":
            for each in event.about["generations"]:
                found.setdefault("connecting the members of a generation", []).append(each["took_s"])
    return found


def main(words: list[str] | None = None) -> int:
    """Runs the training with faults. Returns 0 if every sum was right and the training went on to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=["jaxcomm", "unchanged"], default="jaxcomm")
    parser.add_argument("--transport", choices=["shm", "tcp", "udp"], default="shm")
    parser.add_argument("--state", type=int, default=1, help="MiB of state")
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder))
        try:
            faults = inflict(job, options, random.Random(options.seed))
            is_whole = job.wait_for_block(time.monotonic(), options.processes)
            job.end_file.touch()
            has_ended = not job.take(time.monotonic() + LONGEST_S)
            status = job.running.wait(10) if has_ended else None
        finally:
            job.running.kill()
            job.running.wait()
    wrong = [event for event in job.events if event.kind == "wrong"]
    steps = max((event.about["step"] for event in job.events if event.kind == "block"), default=0)
    found = times(job, faults, options.processes)
    print(f"{len(faults)} faults, seed {options.seed}: {steps} steps, {len(wrong)} wrong results")
    for name, seconds in found.items():
        print(f"  {name:45} {statistics.median(seconds):7.2f} {max(seconds):7.2f}  ({len(seconds)})")
    if options.out:
        options.out.write_text(json.dumps({"faults": len(faults), "steps": steps, "wrong": len(wrong), "times": found}))
    if wrong or not is_whole or status != 0:
        print(*job.lines[-60:], sep="", file=sys.stderr)
        print(f"failed: whole again {is_whole}, exit status {status}, {wrong[:3]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
