"""Measures the cost of encryption: sums between two processes over loopback, TCP and UDP, by turns of launches.

    python benchmarks/encryption/price.py [--turns 5]

For each way and size: the median time of a sum, and the processor seconds of both processes for each GB that a process
sends. Over UDP the ways without encryption are tags by SipHash and by AES-GMAC.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed.connect.job_core import JobCore

# By name: the transport, JAXCOMM_ENCRYPT, and whether the processors' instructions for AES are used.
WAYS = {
    "TCP": ("tcp", "0", True),
    "TCP, encrypted": ("tcp", "1", True),
    "UDP, SipHash": ("udp", "0", False),
    "UDP, AES-GMAC": ("udp", "0", True),
    "UDP, encrypted": ("udp", "1", True),
}
ROUNDS = {1 << 20: 200, 16 << 20: 20}  # by bytes of a rank
MARK = "@price "


def job(uses_aes: str) -> None:
    """Runs in each process: times the sums, and prints the medians and processor seconds."""
    if uses_aes == "False":
        JobCore.seals_by_aes = lambda _: False  # type: ignore[method-assign]
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    for size, rounds in ROUNDS.items():
        values = np.ones((2, size // 4), np.float32)
        sharding = NamedSharding(mesh, P("d"))
        x = jax.make_array_from_callback(values.shape, sharding, lambda index, values=values: values[index])
        for _ in range(rounds // 4):
            step(x).block_until_ready()
        multihost_utils.sync_global_devices("begin")
        used, times = processor_seconds(), []
        for _ in range(rounds):
            began = time.perf_counter()
            step(x).block_until_ready()
            times.append(time.perf_counter() - began)
        used = processor_seconds() - used
        print(f"{MARK}{json.dumps([size, statistics.median(times), used / (rounds * size / 1e9)])}", flush=True)


def processor_seconds() -> float:
    """Returns the processor time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Launches the jobs by turns, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    found: dict[tuple[int, str], list[tuple[float, float]]] = collections.defaultdict(list)
    for _ in range(turns):
        for name, (transport, encrypts, uses_aes) in WAYS.items():
            launch = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "2", "--transport", transport, "--"]
            output = subprocess.run(
                [*launch, sys.executable, __file__, "job", str(uses_aes)],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "JAXCOMM_ENCRYPT": encrypts},
            ).stdout
            reports = [json.loads(line.partition(MARK)[2]) for line in output.splitlines() if MARK in line]
            for size in ROUNDS:
                both = [(median, used) for bytes_, median, used in reports if bytes_ == size]
                found[size, name].append((max(median for median, _ in both), sum(used for _, used in both)))
    print("| bytes of a rank | way | time | processor seconds per GB |\n|---|---|---|---|")
    for (size, name), each in found.items():
        times, used = zip(*each, strict=True)
        print(
            f"| {size >> 20} MiB | {name} | {statistics.median(times) * 1e3:.3g} ms "
            f"({min(times) * 1e3:.3g} to {max(times) * 1e3:.3g}) "
            f"| {statistics.median(used):.3g} ({min(used):.3g} to {max(used):.3g}) |"
        )


if __name__ == "__main__":
    job(sys.argv[2]) if sys.argv[1:2] == ["job"] else main()
