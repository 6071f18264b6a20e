"""The program of the two processes with which `jaxcomm check --fabric` tries a fabric. It prints a JSON object.

python -m jaxcomm.measure.fabric_program tries|killed

The processes have different values of JAXCOMM_HOST, so they sum over the rail of JAXCOMM_RAILS.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from typing import Any, Final

import numpy as np

SIZES: Final = (4 << 10, 256 << 10, 16 << 20)  # buffer sizes of the sums, in bytes
_SUMS: Final = 20  # number of sums of each size
_CANCELS: Final = 50
_CANCELLED: Final = SIZES[-1]  # buffer size of the sums that may miss their deadline, in bytes
_DEADLINE_S: Final = 60.0
MARK: Final = "@fabric "  # printed before the JSON object


def main() -> None:
    """Joins the job, and runs the part that the argument names."""
    import jax

    jax.distributed.initialize()
    from jaxcomm import ffi

    ffi.set_deadline(_DEADLINE_S)
    sums = _Sums()
    found = _killed(sums) if sys.argv[1] == "killed" else _tries(sums)
    print(f"{MARK}{json.dumps(found)}", flush=True)
    if sys.argv[1] == "killed":
        os._exit(0)  # a normal exit would wait for the killed process


class _Sums:
    """Sums over both processes, with the same operands in every job."""

    def __init__(self) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        from jaxcomm import collectives

        spec: Any = PartitionSpec("data")
        mesh = Mesh(np.array(jax.devices()), ("data",))
        mapped = jax.shard_map(lambda x: collectives.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec)
        self._step, self._sharding = jax.jit(mapped), NamedSharding(mesh, spec)
        self._operands: dict[int, Any] = {}

    def __call__(self, size: int) -> np.ndarray:
        import jax

        if size not in self._operands:
            values = np.random.default_rng(size).standard_normal((2, size // 4), np.float32)
            self._operands[size] = jax.make_array_from_callback(
                values.shape, self._sharding, lambda index: values[index]
            )
        return np.asarray(self._step(self._operands[size]).addressable_data(0))


def _tries(sums: _Sums) -> dict[str, Any]:
    """The bits and the times of sums, and how many sums were wrong while or after sums missed their deadline."""
    from jaxcomm import ffi

    found: dict[str, Any] = {"bits": [hashlib.sha256(sums(size).tobytes()).hexdigest() for size in SIZES], "rates": []}
    for size in SIZES:
        begun, busy = time.perf_counter(), time.process_time()
        for _ in range(_SUMS):
            sums(size)
        found["rates"].append([(time.perf_counter() - begun) / _SUMS, (time.process_time() - busy) / _SUMS])
    right = hashlib.sha256(sums(_CANCELLED).tobytes()).hexdigest()
    cancelled = wrong = 0
    for number in range(_CANCELS):
        ffi.set_deadline(0.001 * (1 + number % 20))
        try:
            wrong += hashlib.sha256(sums(_CANCELLED).tobytes()).hexdigest() != right
        except Exception:
            cancelled += 1
        ffi.set_deadline(_DEADLINE_S)
        wrong += hashlib.sha256(sums(_CANCELLED).tobytes()).hexdigest() != right
    return {**found, "cancelled": cancelled, "wrong": wrong}


def _killed(sums: _Sums) -> dict[str, Any]:
    """Kills the second process. Returns the error of the first process, and the seconds until the error."""
    import jax

    sums(SIZES[1])
    if jax.process_index() == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.perf_counter()
    try:
        while True:
            sums(SIZES[1])
    except Exception as error:
        text = next((line for line in str(error).splitlines() if "process 1" in line), str(error)[:200])
    return {"error": text, "seconds": time.perf_counter() - begun - 0.5}


if __name__ == "__main__":
    main()
