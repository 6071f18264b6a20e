"""The first section reports the GPUs, XLA's kind of memory, how many GPU pairs can access it, and which sums could run.

python -m jaxcomm.gpu.checks.machine RESULT.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from jaxcomm.gpu import certificate
from jaxcomm.gpu.checks import ranks
from jaxcomm.gpu.checks.rows import Row, write
from jaxcomm.gpu.core import CUDA


def machine() -> Iterator[Row]:
    """Yields rows with a subject and a finding. The section passes whatever the findings are."""
    yield ["subject", "found"]
    gpus = jax.local_devices(backend="cuda")
    kinds = sorted({gpu.device_kind for gpu in gpus})
    yield ["GPUs of this process", f"{len(gpus)} of {', '.join(kinds)}"]
    here = certificate.here()
    yield ["versions", ", ".join(f"{name} {here[name]}" for name in ("driver", "cuda", "nccl", "jax", "jaxlib"))]
    arrays = {gpu.local_hardware_id: jax.device_put(np.zeros(1 << 20, np.uint8), gpu) for gpu in gpus}
    addresses = {number: array.unsafe_buffer_pointer() for number, array in arrays.items()}
    kinds = sorted({CUDA.text("cuda_memory", *each) for each in addresses.items()})
    yield ["XLA's memory is of", ", ".join(kinds)]
    faults = {
        (gpu, peer): CUDA.failure("cuda_reach", peer, address)
        for gpu, address in addresses.items()
        for peer in addresses
        if peer != gpu
    }
    reached = sum(fault is None for fault in faults.values())
    yield ["pairs of GPUs that reach XLA's memory", f"{reached} of {len(faults)}"]
    fault = next((fault.splitlines()[0] for fault in faults.values() if fault), None)
    yield ["sums in a process, by the fused kernel", could("it needs a second GPU" if len(gpus) < 2 else fault)]
    yield ["sums between processes, by NCCL and by XLA's permutes", could(ranks.why_off(len(gpus)))]
    yield ["one GPU's sections, by virtual ranks", "could run"]


def could(fault: str | None) -> str:
    """Returns, in words, whether sums could run. `fault` is the reason why they cannot run, or None."""
    return f"cannot run: {fault}" if fault else "could run"


if __name__ == "__main__":
    write(machine(), Path(sys.argv[1]))
