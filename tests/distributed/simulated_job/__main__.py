"""Runs histories of simulated jobs, and prints the trace of each in which an invariant did not hold.

python -m tests.distributed.simulated_job --histories 1000 --seed 5000
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

from tests.distributed.simulated_job import job


def run(seed: int) -> tuple[bool, str]:
    """Whether an invariant did not hold in a history, and the history's trace."""
    history = job.run(seed)
    return bool(history.wrong), history.text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.simulated_job", description=__doc__)
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print all traces")
    options = parser.parse_args()
    began, failed = time.monotonic(), []
    seeds = range(options.seed, options.seed + options.histories)
    with multiprocessing.get_context("fork").Pool() as processors:
        for seed, (is_wrong, text) in zip(seeds, processors.imap(run, seeds, chunksize=8), strict=True):
            if is_wrong:
                failed.append(seed)
            if is_wrong or options.trace:
                print(text, flush=True)
    rate = options.histories / (time.monotonic() - began)
    print(f"{options.histories} histories, {3600 * rate:.0f} an hour; failed seeds: {failed or 'none'}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
