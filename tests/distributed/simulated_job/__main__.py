"""Runs histories of simulated jobs, and prints the trace of each in which an invariant did not hold.

python -m tests.distributed.simulated_job --histories 1000 --seed 5000
"""

from __future__ import annotations

import argparse
import time

from tests.distributed.simulated_job import job


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.simulated_job", description=__doc__)
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print all traces")
    options = parser.parse_args()
    began, failed = time.monotonic(), []
    for seed in range(options.seed, options.seed + options.histories):
        history = job.run(seed)
        if history.wrong:
            failed.append(seed)
        if history.wrong or options.trace:
            print(history.text(), flush=True)
    rate = options.histories / (time.monotonic() - began)
    print(f"{options.histories} histories, {3600 * rate:.0f} an hour; failed seeds: {failed or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
