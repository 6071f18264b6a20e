"""Random faults in a testbed of four hosts: each must cause one clear error or none, no wrong sum, no hang. Needs root.

    python benchmarks/faults.py                       # 40 jobs of five faults, about 25 minutes
    python benchmarks/faults.py --first 17 --jobs 1   # the job of one seed, with its processes' output

`benchmarks/fault_job.py` draws the faults of a job and carries them out one after the other. The last fault ends the
job. After every other fault, calls must work again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import testbed_job

from jaxcomm import testbed
from jaxcomm.report.tables import table
from jaxcomm.testbed import Layout, Testbed

FAULTS = 5
TIMEOUT_S = 300
PROGRAM = Path(__file__).with_name("fault_job.py")
HOSTS = Testbed.model_validate(
    {"rails": [{"name": "eth0", "mbit": 1000}], "hosts": [{"name": name} for name in "abcd"]}
)
# If these are short, no process notices. Otherwise they cause an error; its text depends on the current operation.
MAY_PASS = ("interface down", "packets dropped", "one direction", "is stopped", "is late")


def run(layout: Layout, seed: int) -> tuple[list[list[dict[str, Any]]], str]:
    """The reports of all processes of the seed's job, and their output."""
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(layout.testbed.processes)]
        children = testbed_job.start(layout, [str(PROGRAM), str(seed), str(FAULTS)], outputs.__getitem__)
        deadline = time.monotonic() + TIMEOUT_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            child.wait()
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
    reports = [
        [json.loads(line.removeprefix("@report ")) for line in text.splitlines() if line.startswith("@report ")]
        for text in texts
    ]
    return reports, "\n".join(f"[{process}] {line}" for process, text in enumerate(texts) for line in text.splitlines())


def judge(reports: Sequence[Sequence[dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yields the kind of each fault and the job's mistakes in handling it; no text if there are none."""
    for number in range(FAULTS):
        found = [own[number] if number < len(own) else {} for own in reports]
        known = next((each["fault"] for each in found if "hangs" not in each and each), None)
        if known is None:
            yield "?", f"no process reports fault {number}"
            return
        kind, victim, *_ = known
        last = number == FAULTS - 1
        wrong = [f"process {rank}: {text}" for rank, each in enumerate(found) for text in _faults(each, last)]
        silent = [rank for rank, each in enumerate(found) if not each and not (last and rank == victim)]
        if silent:
            wrong.append(f"processes {silent} report nothing")
        others = [each.get("text", "") for rank, each in enumerate(found) if rank != victim]
        if kind not in MAY_PASS and not all(f"ank {victim}" in message for message in others):
            wrong.append(f"a process does not name rank {victim}: {others}")
        yield kind, "; ".join(wrong)


def _faults(each: dict[str, Any], last: bool) -> Iterator[str]:
    if "hangs" in each:
        yield f"waits for {each['hangs']}"
    if each.get("text") == "WRONG" or "WRONG" in each.get("after", ()):
        yield "a wrong sum"
    if not last and each and each.get("after", [None])[-1] != "":
        yield f"no call works after it: {each.get('after')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="seed of the first job; default 0")
    parser.add_argument("--jobs", type=int, default=40, help="how many; default 40")
    args = parser.parse_args()
    count, bad = collections.Counter[str](), collections.Counter[str]()
    for seed in range(args.first, args.first + args.jobs):
        with testbed.up(HOSTS) as layout:  # a new one, as the last fault may cut a host off for good
            reports, output = run(layout, seed)
        judged = list(judge(reports))
        if args.jobs == 1 or any(wrong for _, wrong in judged):
            print(output)
        for kind, wrong in judged:
            count[kind] += 1
            bad[kind] += bool(wrong)
            if wrong:
                print(f"seed {seed}, {kind}: {wrong}", flush=True)
        print(f"{seed + 1 - args.first} of {args.jobs} jobs", file=sys.stderr, flush=True)
    print(table(["fault", "times", "not as it should be"], [[kind, count[kind], bad[kind]] for kind in sorted(count)]))
    sys.exit(bool(sum(bad.values())))


if __name__ == "__main__":
    main()
