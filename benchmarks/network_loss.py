"""Cost of packet loss for a sum, exact or with a part of the gradient that may stay lost.

    JAXCOMM_TRANSPORT=udp jaxcomm testbed run packet_loss.toml -- python benchmarks/network_loss.py

Runs in each process of a job. At each size of --mib the sums of --sums take turns, --rounds times: jaxcomm's,
jaxcomm's with `Drop(policy="network")` and with `Drop(policy="deadline")`, and lax's, which is Gloo over TCP. A barrier
precedes each sum, because lost packets make processes end the previous one up to hundreds of milliseconds apart.
Process 0 prints mean, median and 99 % of each sum's times, the CPU time of its process per GB that it sends, and the
lost share of the bytes that were to come to it.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import jax
import numpy as np
import turns

import jaxcomm
from jaxcomm import jax_compat
from jaxcomm.train import Drop

BARRIER_MS = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", default="1,16")
    parser.add_argument("--sums", default="jaxcomm,network,deadline,lax")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bound", type=float, default=0.1)
    parser.add_argument("--way", help="of this launch, for the file of --out, where launches are compared")
    parser.add_argument("--out", help="also write the seconds of each sum to this file, as JSON")
    args = parser.parse_args()
    rows = []
    jax.distributed.initialize()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    place = jax.NamedSharding(mesh, jax.P("data"))
    sums = {
        "jaxcomm": partial(jaxcomm.psum, axis_name="data"),
        "network": partial(jaxcomm.psum, axis_name="data", drop=Drop(args.bound, "network")),
        "deadline": partial(jaxcomm.psum, axis_name="data", drop=Drop(args.bound, "deadline")),
        "lax": partial(jax.lax.psum, axis_name="data"),
    }
    for mib in map(int, args.mib.split(",")):
        elements = mib << 18
        own = np.random.default_rng(jax.process_index()).standard_normal(elements, np.float32)
        shape = (elements * jax.device_count(),)
        x = jax.make_array_from_callback(shape, place, lambda index, own=own: own)
        steps = {
            name: jax.jit(jax.shard_map(each, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
            for name, each in sums.items()
            if name in args.sums.split(",")
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        busy: dict[str, list[float]] = {name: [] for name in steps}
        lost = dict.fromkeys(steps, 0)
        for round_ in range(args.rounds + 2):
            for name, step in steps.items():
                jax_compat.key_value_store().wait_at_barrier(f"{mib} {round_} {name}", BARRIER_MS)
                jaxcomm.reset_stats()
                start, start_busy = time.perf_counter(), time.process_time()
                jax.block_until_ready(step(x))
                if round_ >= 2:  # the first two compile, and find the line's rate
                    seconds[name].append(time.perf_counter() - start)
                    busy[name].append(time.process_time() - start_busy)
                    lost[name] += sum(site["lost_bytes"] for site in jaxcomm.stats())
        others = 1 - 1 / jax.device_count()
        called = {f"{name}, {args.way}" if args.way else name: each for name, each in seconds.items()}
        rows.append(turns.row(called, mib=mib))
        if jax.process_index() == 0:
            for name, times in seconds.items():
                mean, median, late = (1e3 * f(times) for f in (np.mean, np.median, partial(np.percentile, q=99)))
                per_gb = np.mean(busy[name]) / (2 * others * 4e-9 * elements)
                print(
                    f"{mib} MiB {name}: mean {mean:.1f}, median {median:.1f}, 99 % {late:.1f} ms, "
                    f"{per_gb:.2f} s of a processor per GB, "
                    f"{lost[name] / (4 * elements * args.rounds * others):.2%} of the bytes to this process lost"
                )
    if jax.process_index() == 0:
        turns.write(args.out, rows)


if __name__ == "__main__":
    main()
