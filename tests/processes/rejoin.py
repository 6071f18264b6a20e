"""A training of three processes. The last one kills itself in its first life, and rejoins in its second.

Words: a case (see `main`), and a folder that all lives share.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import ProcessFailureError, live_devices
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.collectives.plans import SPECS, make
from tests.processes import jobs

SIZE = 100_000  # hosts determine the schedule of such a sum
DIES_AT, BLOCKS = 4, 3


@functools.cache
def over(*devices: Any) -> tuple[Mesh, Any]:
    mesh = Mesh(np.array(devices), ("data",))
    step = jax.shard_map(
        lambda x, own: x + jaxcomm.psum(own, "data"),
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    return mesh, jax.jit(step)


def put(values: np.ndarray, mesh: Mesh, spec: P) -> jax.Array:
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])


def main(case: str, folder: Path) -> None:
    """Cases: "plain", "plan" (for three ranks), "auto", "unlike" (states differ), "preempted" (by SIGTERM, not killed;
    rejoins on another host).
    """
    process = int(os.environ["SLURM_PROCID"])
    lives = folder / f"lives of {process}"
    is_first_life = not lives.exists()
    lives.touch()
    if case == "preempted":
        os.environ["JAXCOMM_HOST"] = "b" if process == 2 and is_first_life else "a"
    jax.distributed.initialize()
    jaxcomm.init(plan={"plan": make((0, None, SPECS["ring"]), ranks=3), "auto": "auto"}.get(case))
    state: dict[str, Any] = {"x": np.zeros(SIZE, np.float32), "key": jax.random.key(process), "name": process}
    step, whole, has_lost = 0, 0, not is_first_life
    if case == "unlike" and not is_first_life:
        state["x"] = np.zeros(SIZE + 1, np.float32)
    while not (has_lost and whole == BLOCKS):
        try:
            if case == "preempted" and process == 2 and is_first_life and step == DIES_AT:
                os.kill(os.getpid(), signal.SIGTERM)
            with live_devices(jax.devices()) as devices, jaxcomm.errors.translated():
                step, state = jaxcomm.elastic.catch_up(step, state)
                if process == 2 and is_first_life and step >= DIES_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                mesh, train_step = over(*devices)
                own = np.concatenate([np.full(SIZE, each.process_index + 1, np.float32) for each in devices])
                now = put(state["x"], mesh, P())
                for _ in range(2):
                    now = train_step(now, put(own, mesh, P("data")))
                after = np.asarray(now.addressable_data(0))
                np.testing.assert_array_equal(after, state["x"] + 2 * sum(each.process_index + 1 for each in devices))
        except ProcessFailureError as error:
            has_lost, whole = True, 0
            jobs.report("failure", cause=str(error.__cause__))
        except jaxcomm.JaxcommError as error:
            jobs.report("error", text=str(error))
            return
        else:
            (folder / "trained").touch()
            step, state, whole = (
                step + 2,
                {**state, "x": after},
                whole + (len({each.process_index for each in devices}) == 3),
            )
    found = jaxcomm.stats()
    jobs.report(
        "end",
        step=step,
        x=float(state["x"][0]),
        name=int(state["name"]),
        key=np.asarray(jax.random.key_data(state["key"])).tolist(),
        ran=sorted({(site["plan"], site["ranks"]) for site in found if site["calls"]}),
        generations=found.generations,
        outcomes=[event["outcome"] for event in found.events],
        restarted=not is_first_life,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
