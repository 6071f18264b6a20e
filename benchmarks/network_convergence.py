"""Compares how well a language model learns if the network loses some of its gradients; over UDP, five seeds.

    JAXCOMM_TRANSPORT=udp jaxcomm testbed run benchmarks/lossy_training.toml -- python benchmarks/network_convergence.py

Each process is a worker and trains the recipe's model by SGD with momentum, then by Adam. Each seed trains three times:
with the exact mean of gradients, with a mean of which a share may stay lost (`Drop(policy="network")`), and with a mean
that leaves out the whole share at random. The learning rates are those of `benchmarks/convergence.py`. Process 0 prints
nats per held-out character: each way's mean with its 95 % interval over the seeds, and the paired differences to the
exact mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

import jax
import optax
from lossy_means import lossy_mean
from scipy import stats

import jaxcomm
import language  # joins the job
from common import devices, synchronisation
from common.synchronisation import Synchronisation
from common.training import Training
from jaxcomm.report.tables import table
from jaxcomm.train import Drop

SEGMENT_BYTES = 1024  # the minimum, as the tensors have some tens of KiB
OPTIMIZERS = {"SGD": optax.sgd(0.1, momentum=0.9), "Adam": optax.adam(6e-3)}


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each way, 2 at least; default 5")
    parser.add_argument("--steps", type=int, default=200, help="of each training; default 200")
    parser.add_argument("--bound", type=float, default=0.1, help="share of each tensor that may stay lost; default 0.1")
    args = parser.parse_args()
    jaxcomm.init(deadline_s=600)  # while processes compile on few processors, the first one waits for the last
    drop = Drop(args.bound, policy="network", segment_bytes=SEGMENT_BYTES)
    ways = {
        "exact": synchronisation.by_name("jaxcomm", jax.device_count()),
        "network": synchronisation.by_name("mlt", jax.device_count(), drop=drop),
        "random": Synchronisation(lossy_mean(devices.AXIS, drop, "random")),
    }
    rows: list[list[object]] = []
    for name, optimizer in OPTIMIZERS.items():
        task = dataclasses.replace(language.python_help(devices.AXIS), optimizer=optimizer)
        trainings = {way: Training(task, how, devices.mesh()) for way, how in ways.items()}
        nats: dict[str, list[float]] = {way: [] for way in ways}
        lost: dict[str, list[float]] = {way: [] for way in ways}
        for seed in range(args.seeds):
            for way, training in trainings.items():
                jaxcomm.reset_stats()
                begin = time.monotonic()
                state, _losses = training.steps(training.init(seed), args.steps)
                nats[way].append(training.score(state)["nats"])
                lost[way].append(lost_share())
                if devices.is_first():
                    took = f"{time.monotonic() - begin:.1f} s"
                    print(f"{name}, seed {seed}, {way}: {nats[way][-1]:.4f} nats, {took}", flush=True)
        for way, found in nats.items():
            differences = [one - exact for one, exact in zip(found, nats["exact"], strict=True)]
            rows.append([name, way, with_interval(found), with_interval(differences), f"{max(lost[way]):.2%}"])
    if devices.is_first():
        print(table(["optimizer", "mean of gradients", "nats", "beside exact", "lost on the way"], rows))


def lost_share() -> float:
    """The lost share of the bytes that the others sent to this process for its part of the sums."""
    sites = [site for site in jaxcomm.stats() if site["lost_bytes"]]
    sent = sum(site["bytes"] * site["calls"] for site in sites) * (1 - 1 / jax.device_count())
    return sum(site["lost_bytes"] for site in sites) / sent if sites else 0.0


def with_interval(values: Sequence[float]) -> str:
    """The mean and its 95 % confidence interval, by Student's t."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):+.4f} ± {stats.t.ppf(0.975, len(values) - 1) * error:.4f}"


if __name__ == "__main__":
    main()
