"""Each process of `benchmarks/drop_training.py`: trains each seed to the target loss, in each way in turn.

The first process prints "@reached {way, seed, seconds, …}" after each training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

import jax
import network_convergence  # joins the job
import optax
import time_to_loss

import jaxcomm
import language
from common import devices, synchronisation
from common.training import Training
from jaxcomm.train import Drop

RATE = 6e-3  # of Adam, as in network_convergence.py
DEADLINE_S = 300  # while processes compile on few processors, the first one waits for the last


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=("exact", "drops", "drops in time"), required=True)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--bound", type=float, required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    jaxcomm.init(deadline_s=DEADLINE_S)
    drop = Drop(args.bound, policy="network", segment_bytes=network_convergence.SEGMENT_BYTES)
    ways = {
        "exact": synchronisation.by_name("jaxcomm", jax.device_count()),
        "drops": synchronisation.by_name("mlt", jax.device_count(), drop=drop),
        "drops in time": synchronisation.by_name(
            "mlt", jax.device_count(), drop=dataclasses.replace(drop, policy="deadline")
        ),
    }
    task = dataclasses.replace(language.python_help(devices.AXIS), optimizer=optax.adam(RATE))
    trainings = {way: Training(task, ways[way], devices.mesh()) for way in args.ways}
    for training in trainings.values():  # compiles, and finds the links' rates
        time_to_loss.reach(training, max(args.seeds) + 1, 0.0, args.every, 2 * args.every)
    for number, seed in enumerate(args.seeds):
        for way in args.ways if number % 2 == 0 else reversed(args.ways):
            jaxcomm.reset_stats()
            reached = time_to_loss.reach(trainings[way], seed, args.target, args.every, args.steps)
            found = {"way": way, "seed": seed, "lost": network_convergence.lost_share(), **reached._asdict()}
            devices.say(f"@reached {json.dumps(found)}")


if __name__ == "__main__":
    main()
