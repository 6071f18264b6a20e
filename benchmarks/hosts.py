"""Plans for 300 random clusters of hosts and racks, beside rival schedules: by simulated runs and the planner's model.

    python benchmarks/hosts.py results.jsonl
    python benchmarks/hosts.py unlike.jsonl unlike

Each finished cluster is a line of the file; a restarted command does only the missing ones. The clusters and rivals are
those of `tests.planner.random_hosts`. With "unlike", NICs have different rates.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.planner.random_hosts import Comparison, compared, random_cluster, unlike_cluster  # noqa: E402

CLUSTERS = 300


def main() -> int:
    """Measures missing clusters, prints the worst. Returns 1 if a plan is slower than a rival or its model is off."""
    results, make = Path(sys.argv[1]), unlike_cluster if sys.argv[2:] == ["unlike"] else random_cluster
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {line["seed"] for line in lines}
    with results.open("a") as file:
        for seed in tqdm(range(CLUSTERS), unit="cluster"):
            if seed in known:
                continue
            start = time.process_time()
            found = [each._asdict() for each in compared(seed, make)]
            lines.append({"seed": seed, "cpu_s": time.process_time() - start, "choices": found})
            file.write(json.dumps(lines[-1]) + "\n")
            file.flush()
    choices = [Comparison(**choice) for line in lines for choice in line["choices"]]
    failing = [choice for choice in choices if not choice.passes]
    seconds = sorted(line["cpu_s"] for line in lines)
    print(f"{len(lines)} clusters, {len(choices)} choices, {len(failing)} slower than a rival or off the run")
    print(f"longest beside the fastest rival: by runs {max(each.by_run for each in choices):.3f} of it", end="")
    print(f", by the model {max(each.by_model for each in choices):.3f}")
    print(f"furthest from its run where no link is shared: {max(each.apart for each in choices):.1%}")
    print(f"seconds of a processor: median {seconds[len(seconds) // 2]:.1f}, most {seconds[-1]:.1f}")
    for each in failing:
        print(each)
    return bool(failing)


if __name__ == "__main__":
    sys.exit(main())
