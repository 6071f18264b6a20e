"""How fast the reductions pass over memory, by element type, fan-in and fan-out, and size.

    python benchmarks/kernels.py --sizes 64KiB,1MiB,16MiB

All processors sum eight buffers in place and store the sum to all of them, or to one. Rates are bytes read and written
per second. The cases take turns; medians of five rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

from jaxcomm import ffi
from jaxcomm.cli.common.arguments import size
from jaxcomm.report.tables import table

RANKS = 8
ROUNDS = 5
DTYPES = ("bfloat16", "float16", "float32", "float64")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64KiB,1MiB,16MiB", help="of one buffer")
    sizes = [size(text) for text in parser.parse_args().sizes.split(",")]
    cases = [*itertools.product(DTYPES, (RANKS, 1), sizes)]
    rates: dict[tuple[str, int, int], list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for dtype, writes, nbytes in cases:
            seconds = ffi.floor_seconds(RANKS, nbytes, dtype, writes)
            rates[dtype, writes, nbytes].append((RANKS + writes) * nbytes / seconds / 1e9)
    rows = [
        [dtype, f"{RANKS} to {writes}", *(f"{statistics.median(rates[dtype, writes, nbytes]):.1f}" for nbytes in sizes)]
        for dtype, writes in itertools.product(DTYPES, (RANKS, 1))
    ]
    print(table(["GB/s", "buffers", *(f"{nbytes >> 10} KiB" for nbytes in sizes)], rows))


if __name__ == "__main__":
    main()
