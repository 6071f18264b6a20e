"""Times an all-reduce with one slow host, with a plan and without, beside the time of that host's bytes alone.

    jaxcomm testbed run benchmarks/slow_host.toml -- jaxcomm profile slow.json --job
    jaxcomm plan slow.json -o plan.json
    jaxcomm testbed run benchmarks/slow_host.toml -- python benchmarks/slow_hosts.py --plan plan.json

A host that loses one of two rails becomes slow in the run. With --lost the turns begin after the loss, and each plan is
compared with itself without its schedules for lost rails:

    jaxcomm testbed run benchmarks/lost_rail.toml -- python benchmarks/slow_hosts.py --plan plan.json --lost

Plans run from the first call on, without a trial. With --trial they have a trial first, as users' plans do, and the
turns time the schedule that the trial kept. A plan has the name of its file.

The ways take turns. The bound is the time in which the slow host and another host send each other a whole buffer over
one TCP connection: every all-reduce moves at least these bytes over the slow host's link. Needs one process per host,
and the addresses of a testbed.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import turns
from absl import app, flags

import jaxcomm
from jaxcomm import plan
from jaxcomm.cli.common import spmd
from jaxcomm.report.tables import bytes_text, seconds_text, table

BYTES = flags.DEFINE_multi_integer("bytes", [16 << 20], "of each rank's buffer; may be given several times")
ROUNDS = flags.DEFINE_integer("rounds", 7, "turns of each way", lower_bound=1)
PLANS = flags.DEFINE_multi_string("plan", [], "a plan; may be given several times")
LOST = flags.DEFINE_bool("lost", False, "begin once each process has lost a rail")
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
TRIAL = flags.DEFINE_bool("trial", False, "try each plan in the run before the turns")
SLOW = flags.DEFINE_integer("slow", -1, "the slow host's process; -1 is the last")
ADDRESS, PORT = "10.77.0.{}", 28711
TRIED = 72  # calls, after which a trial has an outcome


def exchange(nbytes: int) -> float | None:
    """Seconds until the slow host and another have each other's buffer; None on other hosts."""
    process, slow = jax.process_index(), SLOW.value % jax.process_count()
    other = 1 if slow == 0 else 0
    if process not in (slow, other):
        return None
    if process == other:
        with socket.create_server((ADDRESS.format(other + 1), PORT)) as server:
            own, _ = server.accept()
    else:
        own = connected(ADDRESS.format(other + 1))
    with own:
        own.sendall(b"?")
        own.recv(1)
        start = time.perf_counter()
        sender = threading.Thread(target=own.sendall, args=(bytes(nbytes),))
        sender.start()
        left = nbytes
        while left:
            left -= len(own.recv(min(left, 1 << 20)))
        sender.join()
        return time.perf_counter() - start


def connected(address: str) -> socket.socket:
    """Connects as soon as the other end listens."""
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, PORT), 30)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def without_lost_rails(given: plan.Plan) -> plan.Plan:
    """The plan without its schedules for hosts that lack a rail."""
    return plan.Plan.model_validate({**given.model_dump(exclude={"hash"}), "lost_rails": ()})


def await_loss(mesh: Any) -> None:
    """Makes calls until every process has lost a rail. Fails after two minutes."""
    count = jax.jit(
        jax.shard_map(lambda x: jaxcomm.psum(x, spmd.AXIS), mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SAME)
    )
    own, end = np.zeros((mesh.size, 1 << 18), np.float32), time.monotonic() + 120
    lost = waited = 0
    while lost < mesh.size:
        if waited:  # a sum, so that all processes end after the same call
            raise SystemExit(
                f"{lost} of {mesh.size} processes have lost a rail in 120 s: does the testbed's file cut one?"
            )
        own[:, 0] = any(not rail["is_open"] for rail in jaxcomm.stats().rails)
        own[:, 1] = time.monotonic() > end
        found = count(spmd.place(own, mesh, spmd.SPLIT))
        lost, waited = (int(each) for each in np.asarray(found.addressable_data(0)).flat[:2])


def main(_: list[str]) -> None:
    jax.distributed.initialize()
    jaxcomm.init(trial=TRIAL.value)
    mesh = spmd.mesh(jax.device_count())
    plans = {Path(path).stem: plan.load(path) for path in PLANS.value}
    if len(plans) < len(PLANS.value):
        raise SystemExit(f"several of {', '.join(PLANS.value)} have one name.\n  Cure: rename the files.")
    ways: dict[str, Any] = {"without a plan": {}, **plans}
    if LOST.value:
        ways |= {f"{name} without lost rails": without_lost_rails(each) for name, each in plans.items()}
    rows, written = [], []
    for nbytes in BYTES.value:
        x = spmd.place(np.ones((mesh.size, nbytes // 4), np.float32), mesh, spmd.SPLIT)
        steps = {
            way: jax.jit(
                jax.shard_map(
                    lambda x, plan=each: jaxcomm.psum(x, spmd.AXIS, plan=plan),
                    mesh=mesh,
                    in_specs=spmd.SPLIT,
                    out_specs=spmd.SPLIT,
                    check_vma=False,
                )
            )
            for way, each in ways.items()
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for step in steps.values():
            got = jax.block_until_ready(step(x))
            assert np.all(np.asarray(got.addressable_data(0)) == mesh.size)
        for _ in range(TRIED if TRIAL.value else 0):
            for step in steps.values():
                jax.block_until_ready(step(x))
        if LOST.value:
            await_loss(mesh)
            for step in steps.values():  # a call's schedule is decided when the previous call begins
                jax.block_until_ready(step(x))
        bound = [exchange(nbytes) for _ in range(3)]
        jax.block_until_ready(steps["without a plan"](x))
        for _ in range(ROUNDS.value):
            for way, step in steps.items():
                start = time.perf_counter()
                jax.block_until_ready(step(x))
                found[way].append(time.perf_counter() - start)
        if jax.process_index() == SLOW.value % jax.process_count():
            alone = statistics.median(each for each in bound if each is not None)
            written.append(turns.row(found, bytes=nbytes, trial=TRIAL.value, alone_s=alone))
            times = {way: statistics.median(each) for way, each in found.items()}
            cells = [f"{seconds_text(each)}, {each / alone:.2f} ×" for each in times.values()]
            rows.append([bytes_text(nbytes), seconds_text(alone), *cells])
    if rows:
        turns.write(OUT.value, written)
        print(table(["bytes", "the slow host's bytes", *ways], rows))


if __name__ == "__main__":
    app.run(main)
