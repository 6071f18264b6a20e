"""Groups of devices as XLA writes them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from jaxcomm.backend.hlo_groups import groups_in
from jaxcomm.errors import JaxcommError

HEAD = "HloModule jit_f, is_scheduled=true, num_partitions=4\n"
LINE = "  %r = f32[8] {op}(%p), channel_id=1, replica_groups={groups}, {global_}to_apply=%a\n"

CASES = {
    "all devices": ("all-reduce", "{}", [(0, 1, 2, 3)]),
    "a list": ("all-reduce", "{{0,2},{3,1}}", [(0, 2), (3, 1)]),
    "a range": ("all-gather", "[2,2]<=[4]", [(0, 1), (2, 3)]),
    "a transposed range": ("reduce-scatter", "[2,2]<=[2,2]T(1,0)", [(0, 2), (1, 3)]),
    "an axis of a mesh": ("all-reduce", "mesh['a'=2,'b'=2] {'a'}", [(0, 2), (1, 3)]),
    "both axes of a mesh": ("all-reduce", "mesh['a'=2,'b'=2] {'a','b'}", [(0, 1, 2, 3)]),
    "axes in another order": ("all-reduce", "mesh['a'=2,'b'=2] {'b','a'}", [(0, 2, 1, 3)]),
    "the outer part of an axis": ("all-reduce", "mesh['a'=4] {'a':(1)2}", [(0, 2), (1, 3)]),
    "the inner part of an axis": ("all-to-all", "mesh['a'=4] {'a':(2)2}", [(0, 1), (2, 3)]),
    "a mesh of other devices": ("all-reduce", "mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", [(3, 2), (1, 0)]),
    "a mesh transposed": ("all-reduce", "mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", [(0, 2), (1, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_as_xla_writes_them(name: str) -> None:
    operation, groups, expected = CASES[name]
    text = HEAD + LINE.format(op=operation, groups=groups, global_="use_global_device_ids=true, ")
    assert [*groups_in(text, 4)] == expected


def test_groups_of_replicas_are_all_partitions() -> None:
    assert [*groups_in(HEAD + LINE.format(op="all-reduce", groups="{{0}}", global_=""), 4)] == [(0, 1, 2, 3)]


def test_a_permutation_is_among_all_devices() -> None:
    line = "  %r = f32[8]{0} collective-permute-start(%p), channel_id=2, source_target_pairs={{0,2},{2,0}}\n"
    assert [*groups_in(HEAD + line, 4)] == [(0, 1, 2, 3)]


def test_other_lines_and_names_have_no_groups() -> None:
    line = '  %all-reduce.1 = f32[8]{0} add(%p, %all-reduce), metadata={op_name=" all-reduce("}\n'
    assert [*groups_in(HEAD + line, 4)] == []


def test_unknown_groups_are_an_error_that_shows_them() -> None:
    with pytest.raises(JaxcommError, match=r"cannot read: replica_groups=\{bars:1\}"):
        groups_in(HEAD + LINE.format(op="all-reduce", groups="{bars:1}", global_="use_global_device_ids=true, "), 4)


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("  %r = f32[2147483647] all-reduce(%p), replica_groups={}, to_apply=%a\n", True),
        ("  %r = (f32[8], s8[65536,65536]) all-reduce(%p, %q), replica_groups={}, to_apply=%a\n", False),
        ("  %r = f32[4294967296] all-gather(%p), replica_groups={}, dimensions={0}\n", True),
        ("  %r = f32[8589934592] all-gather(%p), replica_groups={}, dimensions={0}\n", False),
        ("  %r = c64[268435455] collective-permute(%p), source_target_pairs={{0,1}}\n", True),
        ("  %r = c64[268435456] collective-permute(%p), source_target_pairs={{0,1}}\n", False),
        ("  %r = bf16[1073741823] collective-permute(%p), source_target_pairs={{0,1}}\n", True),
        ("  %r = pred[2147483648] all-to-all(%p), replica_groups={}\n", False),
        ("  %r = f8e4m3fn[2147483647] all-to-all(%p), replica_groups={}\n", True),
    ],
)
def test_more_than_jaxlib_can_count_is_an_error(line: str, fits: bool) -> None:
    if fits:
        assert [*groups_in(HEAD + line, 4)] == [(0, 1, 2, 3)]
    else:
        with pytest.raises(JaxcommError, match="jaxlib counts at most 2147483647"):
            groups_in(HEAD + line, 4)


@pytest.mark.parametrize("result", ["f16[8]{0}", "(f32[8]{0}, f16[8]{0})"])
def test_halves_are_an_error_with_a_cure(result: str) -> None:
    line = f"  ROOT %r = {result} all-gather(%p, %q), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{0}}\n"
    with pytest.raises(JaxcommError, match=r"all-gather of f16 or 8-bit floats(.|\n)*Cure: use bfloat16"):
        groups_in(HEAD + line, 4)
    other = line.replace("f16", "bf16") + line.replace("all-gather", "all-to-all") + line.replace("all-gather", "add")
    assert groups_in(HEAD + other, 4)


def test_groups_of_a_program_of_this_jax() -> None:
    script = """
        import jax, jax.numpy as jnp
        from jax import lax
        from jax.sharding import PartitionSpec as P
        from jaxcomm import jax_compat
        from jaxcomm.backend.hlo_groups import groups_in
        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        def body(x):
            x = lax.all_gather(lax.psum(x, "a"), "b").sum(0)
            return lax.cond(x.sum() > 0, lambda: lax.pmax(x, ("a", "b")), lambda: lax.ppermute(x, "a", [(0, 1)]))
        step = jax.shard_map(body, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")), check_vma=False)
        seen = []
        jax_compat.before_first_execution(lambda run, _: seen.append([*groups_in(jax_compat.program_text(run), 4)]))
        jitted = jax.jit(step)
        for _ in range(3):
            jitted(jnp.ones(64)).block_until_ready()
        print([sorted(groups) for groups in seen if groups])
    """
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=flags, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[[(0, 1), (0, 1, 2, 3), (0, 2), (1, 3), (2, 3)]]\n", done.stderr


def test_a_first_execution_that_failed_is_repeated() -> None:
    script = """
        import jax, jax.numpy as jnp
        from jaxcomm import jax_compat
        seen = []
        def fail_once(executable, devices):
            seen.append(len(devices))
            if len(seen) == 1:
                raise ValueError("once")
        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        ones = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P("x")))
        jax_compat.before_first_execution(fail_once)
        step = jax.jit(lambda x: x.sum())
        for _ in range(3):
            try:
                print(step(ones))
            except ValueError as error:
                print(error)
        print(seen)
    """
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=flags, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "once\n2.0\n2.0\n[2, 2]\n", done.stdout + done.stderr
