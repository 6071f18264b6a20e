"""Programs compiled for GPUs of a described kind, or for TPUs, on a machine without any.

XLA's compiler for CUDA is in the wheels of JAX's plugin, which `make test` installs into a folder of its own: JAX names
a plugin without a GPU as an error in every program, and one process cannot have our custom calls in both of its XLAs.
A topology is `processes x hosts x GPUs`, as XLA names it:
"1x1x8" is one host of eight GPUs, "1x8x1" eight hosts of one. One of TPUs is as libtpu names it: "v5e:2x4".
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

H100: Final = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

needs_plugin = pytest.mark.skipif(
    find_spec("jax_plugins.xla_cuda13") is None if find_spec("jax_plugins") else True,
    reason="JAX's CUDA plugin is not installed; JAXCOMM_CUDA=ON make test brings it",
)

needs_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="XLA's compiler for TPUs, libtpu, is not installed; make test-tpu brings it"
)
NO_TPU: Final = {  # so that libtpu does not ask a server of Google's cloud for the TPUs of this machine
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


class Compiled(NamedTuple):
    """A compiled step: XLA's text, processor seconds that lowering and compiling took, and bytes beside operands."""

    text: str
    seconds: float
    temporary_bytes: int

    def count(self, operation: str) -> int:
        """The number of an HLO operation's instances."""
        return self.text.count(f" {operation}(") + self.text.count(f" {operation}-start(")

    @property
    def kernels(self) -> int:
        """The number of different fused computations: XLA compiles those that differ in names alone once."""
        fused = re.findall(r"^%fused\S* (\(.*?)^\}", self.text, re.MULTILINE | re.DOTALL)
        return len({re.sub(r"%[\w.-]+|[\w.]+: |, metadata=\{.*?\}", "", each) for each in fused})


def compile_for(
    topology: str, body: Callable[..., Any], *shapes: jax.ShapeDtypeStruct, donate: bool = False
) -> Compiled:
    """Compiles `body` under `shard_map` over the axis "data" of all devices.

    Args:
      topology: as above.
      body: takes and returns arrays whose first dimension is that of one device.
      shapes: of the operands on all devices together.
      donate: whether the first operand's memory may be used.
    """
    mesh = mesh_of(topology, ("data",))
    step = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    return _compiled(step, [(x, NamedSharding(mesh, P("data"))) for x in shapes], donate)


def compile_partly_manual(topology: str, body: Callable[..., Any], shape: tuple[int, int]) -> Compiled:
    """The same over half of the GPUs, "data", for float32 whose columns XLA partitions over the pairs of "model"."""
    mesh = mesh_of(topology, ("data", "model"))
    step = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), axis_names={"data"})
    return _compiled(step, [(jax.ShapeDtypeStruct(shape, "float32"), NamedSharding(mesh, P("data", "model")))], False)


def mesh_of(topology: str, axes: tuple[str, ...]) -> Any:
    """A mesh of the topology's devices; a second axis has two of them."""
    from jax.experimental import topologies

    described: Any
    if ":" in topology:
        os.environ.update(NO_TPU)
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    else:
        described = topologies.get_topology_desc(platform="cuda", target_config=H100, topology=topology)
    count = len(described.devices)
    return topologies.make_mesh(described, (count,) if len(axes) == 1 else (count // 2, 2), axes)


def _compiled(step: Any, operands: Sequence[tuple[jax.ShapeDtypeStruct, Any]], donate: bool) -> Compiled:
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x, sharding in operands]
    begin = time.process_time()
    compiled = jax.jit(step, donate_argnums=0 if donate else ()).lower(*placed).compile()
    seconds = time.process_time() - begin
    memory: Any = compiled.memory_analysis()
    return Compiled(compiled.as_text() or "", seconds, memory.temp_size_in_bytes)
