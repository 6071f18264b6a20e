"""Each process of `benchmarks/faults.py`: makes calls while faults, drawn from the seed, happen one after the other.

Prints one line of JSON per fault: the outcome of the calls during it, and whether calls work after it.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError

RANKS = 4
DEADLINE_S, PATIENCE_S = 3.0, 60.0
CALLS, TRIES = 5, 6
HANGS_S = 100  # after this time each process prints its stacks
SIZES = (1, 1_000, 65_536, 300_001, 1 << 20, 1 << 22)  # elements of four bytes
_DROPS = {
    way: (
        f"nft 'add table inet cut; add chain inet cut {way} {{{{ type filter hook {way}put priority 0; }}}}; "
        f'add rule inet cut {way} {interface} "{{interface}}" drop\''
    )
    for way, interface in (("in", "iifname"), ("out", "oifname"))
}
# The commands that a victim runs when the calls begin. It has only one interface in the job's network.
COMMANDS = {
    "is stopped": "kill -STOP {pid}; sleep {lasts}; kill -CONT {pid}",
    "interface down": "ip link set {interface} down; sleep {lasts}; ip link set {interface} up",
    "packets dropped": f"{_DROPS['in']}; {_DROPS['out']}; sleep {{lasts}}; nft delete table inet cut",
    "packets dropped for good": f"{_DROPS['in']}; {_DROPS['out']}",
    "one direction": f"{_DROPS['in']}; sleep {{lasts}}; nft delete table inet cut",
    "is killed": "kill -KILL {pid}",
}
MISTAKES = ("is late", "another size", "another type", "another collective", "leaves out a call")
FATAL = ("is killed", "leaves", "packets dropped for good")


class Fault(NamedTuple):
    """A fault of one rank: `before` seconds after the calls begin, for `lasts` seconds."""

    kind: str
    victim: int
    elements: int
    before: float
    lasts: float


def draw(seed: int, count: int) -> list[Fault]:
    """Faults, the last of which ends the job."""
    drawn = random.Random(seed)
    kinds = [kind for kind in (*COMMANDS, *MISTAKES) if kind not in FATAL]
    return [
        Fault(
            kind=drawn.choice(kinds if i < count - 1 else FATAL),
            victim=drawn.randrange(int(i == count - 1), RANKS),  # never process 0: JAX then ends all others
            elements=drawn.choice(SIZES),
            before=round(drawn.choice((0.0, drawn.uniform(0, 0.5))), 3),
            lasts=round(drawn.choice((drawn.uniform(0.01, 1.0), drawn.uniform(4.0, 6.0))), 3),
        )
        for i in range(count)
    ]


class Job:
    """One process of the job."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.mesh = Mesh(np.array(jax.devices()), ("d",))
        self.sum = self.step(lambda x: jaxcomm.psum(x, "d"))
        self.number = 0  # the fault's number; the calls of different faults have different operands

    def step(self, body: Callable[[Any], Any]) -> Any:
        return jax.jit(jax.shard_map(body, mesh=self.mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    def array(self, elements: int, dtype: Any = np.float32) -> tuple[jax.Array, np.ndarray]:
        """Integers that differ by rank, element and fault, and their sum over the ranks."""
        own = [((np.arange(elements) + 13 * rank + self.number) % 97).astype(dtype) for rank in range(RANKS)]
        whole = np.concatenate(own)
        sharding = NamedSharding(self.mesh, P("d"))
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index]), np.sum(own, axis=0)

    def call(self, step: Any, elements: int, dtype: Any = np.float32) -> str:
        """The outcome of one call: "" if its sum is right, "WRONG" if not, or the error's text."""
        x, total = self.array(elements, dtype)
        try:
            with jaxcomm.errors.translated():
                found = np.asarray(jax.block_until_ready(step(x)).addressable_shards[0].data)
        except JaxcommError as error:
            return str(error)
        return "" if np.array_equal(found, total) else "WRONG"

    def suffer(self, number: int, fault: Fault) -> dict[str, Any]:
        """Makes calls while the fault happens, until one fails; at most five."""
        self.number = number
        barrier(f"{number} begins", self.rank)
        begin, hit, text = time.monotonic(), self.rank == fault.victim, ""
        if hit and fault.kind in COMMANDS:
            start(fault)
        if hit and fault.kind == "is late":
            time.sleep(fault.lasts)
        if not hit or fault.kind != "leaves out a call":
            step, elements, dtype = self._mistake(fault.kind if hit else "", fault.elements)
            text = self.call(step, elements, dtype)
        calls = 1
        while not text and calls < CALLS:
            text, calls = self.call(self.sum, fault.elements), calls + 1
        return {"text": text, "calls": calls, "seconds": round(time.monotonic() - begin, 2)}

    def _mistake(self, kind: str, elements: int) -> tuple[Any, int, Any]:
        if kind == "another size":
            return self.sum, elements + 1, np.float32
        if kind == "another type":
            return self.sum, elements, np.int32
        if kind == "another collective":
            return self.step(lambda x: jaxcomm.pmax(x, "d")), elements, np.float32
        return self.sum, elements, np.float32

    def recover(self, elements: int) -> list[str]:
        """The outcomes of calls until one succeeds. A rank that is behind the others fails once more per launch."""
        found: list[str] = []
        while len(found) < TRIES and not (found and found[-1] in ("", "WRONG")):
            found.append(self.call(self.sum, elements))
        return found


def barrier(name: str, rank: int) -> None:
    """A barrier through the coordinator, whose network has no faults."""
    store.publish(f"{name}/{rank}", "")
    _, missing = store.lookup_all({r: f"{name}/{r}" for r in range(RANKS)}, time.monotonic() + PATIENCE_S)
    if missing:
        report(fault=name, hangs=missing)
        os._exit(3)


def start(fault: Fault) -> None:
    """Starts a separate process that carries out the fault on this one."""
    words = {"pid": os.getpid(), "lasts": fault.lasts, "interface": os.environ["JAXCOMM_RAILS"].partition(":")[0]}
    subprocess.Popen(["sh", "-c", f"sleep {fault.before}; {COMMANDS[fault.kind].format(**words)}"])


def report(**found: Any) -> None:
    print(f"@report {json.dumps(found)}", flush=True)


def main(seed: int, count: int) -> None:
    faulthandler.dump_traceback_later(HANGS_S)
    jax.distributed.initialize()
    atexit.register(os._exit, 0)  # skips JAX's wait for all processes, as one is dead
    job, (*faults, last) = Job(), draw(seed, count)
    jaxcomm.init(deadline_s=PATIENCE_S)
    assert not job.call(job.sum, 4)
    for number, fault in enumerate(faults):
        jaxcomm.init(deadline_s=DEADLINE_S)
        found = job.suffer(number, fault)
        barrier(f"{number} ends", job.rank)
        jaxcomm.init(deadline_s=PATIENCE_S)
        if job.rank == fault.victim and fault.kind in COMMANDS:
            time.sleep(fault.before + fault.lasts)  # until the fault is over
        report(fault=fault, **found, after=job.recover(fault.elements))
    barrier("the end", job.rank)
    hit, begin = job.rank == last.victim, time.monotonic()
    if hit and last.kind == "leaves":
        time.sleep(last.before)
        sys.exit(0)
    if hit:
        start(last)
    text = ""
    while not text:
        text = job.call(job.sum, last.elements)
    report(fault=last, text=text, seconds=round(time.monotonic() - begin, 2))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
