"""Step times of the programs of tests/newcomer/programs_patterns.py, by lax or plain jit and by jaxcomm.

    python benchmarks/programs.py --units 1024 --rows 64

On eight host devices. The two sides of each program and way take turns; medians over all steps. Without Equinox, the
Equinox program is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"] = "32"  # fewer threads can hang XLA's CPU backend
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(Path(__file__).parents[1] / "tests" / "newcomer"))

import jax
import turns
from programs_patterns import CLASSES, FEATURES, PROGRAMS, Program
from programs_ways import WAYS, Way, batch_of, placed, started

import jaxcomm
from jaxcomm.cli.common.timing import Side, take_turns
from jaxcomm.report.tables import bytes_text

MEASURED = ("shard_map", "jit")


def main() -> None:
    """Measures and prints a row per program and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1024, help="width of the models")
    parser.add_argument("--rows", type=int, default=64, help="examples of a step, for all ranks")
    parser.add_argument("--out", help="also write the seconds of each turn to this file, as JSON")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side; default 4")
    args = parser.parse_args()
    rows = []
    print("| program | way | state | lax | jaxcomm | lax / jaxcomm |\n|---|---|---|---|---|---|")
    for name, program in PROGRAMS.items():
        if name == "equinox" and importlib.util.find_spec("equinox") is None:
            continue
        for way in MEASURED:
            if WAYS[way].manual or not program.manual:
                state, seconds = measured(program, WAYS[way], args)
                of_turns = {side: [statistics.median(turn) for turn in each] for side, each in seconds.items()}
                rows.append(turns.row(of_turns, program=name, way=way))
                cells = columns(state, seconds)
                print(f"| {name} | {way} | {' | '.join(cells)} |", flush=True)
    turns.write(args.out, rows)


def measured(program: Program, way: Way, args: argparse.Namespace) -> tuple[int, dict[str, list[list[float]]]]:
    """The bytes of the state, and the seconds of each side's steps by turn."""
    state, batch = placed(way, started(program, args.units), batch_of(args.rows, FEATURES, CLASSES))
    sides = {"lax": jax.lax, "jaxcomm": jaxcomm}
    timed = {name: side(library, program, way, state, batch) for name, library in sides.items()}
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return nbytes, take_turns(timed, args.rounds, lambda: None)


def columns(nbytes: int, found: dict[str, list[list[float]]]) -> list[str]:
    """The bytes of the state, both sides' median milliseconds, and their ratio."""
    seconds = {name: statistics.median(itertools.chain(*each)) for name, each in found.items()}
    return [
        bytes_text(nbytes),
        *(f"{1e3 * each:.2f} ms" for each in seconds.values()),
        f"{seconds['lax'] / seconds['jaxcomm']:.2f}",
    ]


def side(library: Any, program: Program, way: Way, state: Any, batch: Any) -> Side:
    """A side's step on that batch. On jaxcomm's side, jaxcomm also runs the sums that layers make by lax."""
    step = way.step(library, program)

    def run(state: Any) -> Any:
        with jaxcomm.replace_lax() if library is jaxcomm else contextlib.nullcontext():
            return step(state, *batch)

    return Side(run, state)


if __name__ == "__main__":
    main()
