"""Every private JAX name that jaxcomm uses, and our settings on which JAX's caches depend (contexts).

Each name was read in the sources of JAX 0.10.2, 0.11.2 and 0.12.0. `tests/package/test_jax_compat.py` has one test per
function, and `make test-all` runs these tests with the lowest and the newest JAX.
"""

from jaxcomm.jax_compat.job import (
    coordinator_address,
    follow_live_devices,
    forget_devices,
    is_recoverable,
    key_value_store,
    own_incarnation,
    place_in_job,
    spans_processes,
)
from jaxcomm.jax_compat.primitives import (
    ask_policies_as,
    drop_unused_outputs,
    elementwise_rule,
    lax_collectives,
    lax_pvary,
    lowering_of,
    register_partitioner,
    require_devices,
    shard_module,
)
from jaxcomm.jax_compat.programs import (
    before_first_execution,
    cpu_devices,
    has_devices,
    program_text,
    without_first_execution,
)
from jaxcomm.jax_compat.tracing import (
    checks_vma,
    devices,
    is_argument,
    is_export,
    module_data,
    module_types,
    rewrite_shardings,
    sharding_of,
    source_line,
    step_donates,
)

__all__ = [
    "ask_policies_as",
    "before_first_execution",
    "checks_vma",
    "coordinator_address",
    "cpu_devices",
    "devices",
    "drop_unused_outputs",
    "elementwise_rule",
    "follow_live_devices",
    "forget_devices",
    "has_devices",
    "is_argument",
    "is_export",
    "is_recoverable",
    "key_value_store",
    "lax_collectives",
    "lax_pvary",
    "lowering_of",
    "module_data",
    "module_types",
    "own_incarnation",
    "place_in_job",
    "program_text",
    "register_partitioner",
    "require_devices",
    "rewrite_shardings",
    "shard_module",
    "sharding_of",
    "source_line",
    "spans_processes",
    "step_donates",
    "without_first_execution",
]
