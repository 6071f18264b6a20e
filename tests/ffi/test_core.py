"""The C++ core as a compiled step meets it: what runs while a rank is away, what memory it touches, what it refuses."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm import ffi, schedules
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.ffi.site_record import SiteGroup, SiteRecord
from jaxcomm.program.program import Program, ProgramOp, compile

RANKS = 8
ELEMENTS = 1 << 18


@pytest.fixture(scope="module")
def mesh():
    ffi.register()
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


def all_reduce(x, program, plan="test"):
    """The custom call itself, over eight devices."""
    call = jax.ffi.ffi_call(ffi.TARGET, jax.typeof(x), input_output_aliases={0: 0})
    return call(x, site=record(program, plan=plan))


def record(program, plan="test", kind="all_reduce"):
    """The call site of a call of all ranks that runs one program."""
    group = SiteGroup([(0, device) for device in range(RANKS)], [program])
    return SiteRecord("psum", "data", kind, "sum", plan, False, [group]).encode()


def jitted(mesh, step):
    mapped = jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def site(plan):
    return next(record for record in ffi.sites() if record["plan"] == plan)


def late(x, seconds):
    return ffi.delay(x, jnp.where(lax.axis_index("data") == 3, seconds, 0.0))


@pytest.mark.parametrize(
    ("schedule", "early_share"),
    [
        # Of 18 reads and stores per chunk 8 are the others' sum (7 reads, 1 store); the rest needs the late rank.
        (schedules.straggler(RANKS, 3, 14), 8 / 18),
        (schedules.direct(RANKS), 0),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_others_reduce_while_one_rank_is_away(mesh, schedule, early_share):
    program = ffi.register_program(compile(schedule))
    step = jitted(mesh, lambda x: all_reduce(late(x, 0.05), program, f"late {schedule.kind}"))
    x = jax.device_put(np.ones((RANKS, ELEMENTS), np.float32), NamedSharding(mesh, P("data")))
    assert (np.asarray(step(x)) == RANKS).all()
    record = site(f"late {schedule.kind}")
    assert record["late"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert min(record["wait_s"][:3]) > 0.01
    assert record["early_bytes_share"] == pytest.approx(early_share, abs=0.02)


def test_a_warmed_call_touches_no_new_memory(mesh):
    program = ffi.register_program(compile(schedules.ring(RANKS)))
    step = jitted(mesh, lambda x: all_reduce(x, program))
    x = jax.device_put(np.zeros((RANKS, ELEMENTS), np.float32), NamedSharding(mesh, P("data")))
    for _ in range(20):
        x = step(x).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    calls = 20
    for _ in range(calls):
        x = step(x).block_until_ready()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    one_copy = RANKS * ELEMENTS * 4 // resource.getpagesize()
    # Python and XLA touch a page now and then; one copy of one rank's buffer would touch 256 in each call.
    assert faults < calls * one_copy / RANKS / 8, faults


def test_delay_hands_its_operand_on(mesh):
    for check_vma in (True, False):
        mapped = jax.shard_map(
            lambda x: lax.psum(late(x, 0.001), "data"),
            mesh=mesh,
            in_specs=P("data"),
            out_specs=P(),
            check_vma=check_vma,
        )
        assert (np.asarray(jax.jit(mapped)(jnp.arange(RANKS * 2.0))) == [56, 64]).all()


def test_where_the_core_has_no_timer_a_thread_of_the_host_delays():
    def step(values, seconds):
        return ffi._delay_on_host(values, seconds)

    values = [jnp.arange(3), jnp.full((2, 2), -0.0, jnp.bfloat16), jnp.zeros((0,))]
    compiled = jax.jit(step).lower(values, jnp.float32(0)).compile()
    start = time.perf_counter()
    found = jax.block_until_ready(compiled(values, jnp.float32(0.05)))
    assert time.perf_counter() - start >= 0.05
    for one, other in zip(found, values, strict=True):
        assert one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("on", [ffi._delay_in_core, ffi._delay_on_host])
@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf"), 1e10])
def test_a_delay_that_cannot_be_is_refused(on, seconds):
    ffi.register()
    step = jax.jit(lambda x: on([x], jnp.float32(seconds)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"delay: seconds is .*\n  Cure: delay by 0 to 86400 seconds"):
        jax.block_until_ready(step(jnp.ones(3)))


def in_process(script):
    """The output of a Python process of its own."""
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_the_longest_delay_is_not_over_at_once():
    script = """
        import os, threading
        import jax, jax.numpy as jnp
        from jaxcomm import ffi
        x = jnp.ones(3)
        step = jax.jit(lambda x: ffi.delay(x, 86400.0)).lower(x).compile()
        over = threading.Event()
        threading.Thread(target=lambda: (jax.block_until_ready(step(x)), over.set()), daemon=True).start()
        print(over.wait(0.2), flush=True)
        os._exit(0)
    """
    assert in_process(script) == ["False"]


def test_a_process_that_may_start_no_thread_goes_on(mesh):
    script = """
        import ctypes
        import jax, jax.numpy as jnp, numpy as np
        from jax import lax
        from jax.sharding import PartitionSpec as P
        import jaxcomm
        mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        x = np.arange(8.0, dtype=np.float32)
        def compiled(psum):
            step = jax.shard_map(lambda x: psum(x, "d") + psum(x * x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
            return jax.jit(step).lower(x).compile()
        ours, warm = compiled(jaxcomm.psum), compiled(lax.psum)
        libc = ctypes.CDLL(None)
        attributes = ctypes.create_string_buffer(256)
        libc.pthread_attr_init(attributes)
        def threads_can_be_made(they_can):
            libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 23 if they_can else 1 << 60))
            libc.pthread_setattr_default_np(attributes)
        print(np.asarray(warm(x))[0])  # XLA makes its own threads before
        threads_can_be_made(False)
        try:
            print(np.asarray(ours(x))[0])
        except jax.errors.JaxRuntimeError as error:
            print("Cure: raise the limit on threads" in str(error))
        threads_can_be_made(True)
        print(np.asarray(ours(x))[0])
    """
    assert in_process(script) == ["168.0", "True", "168.0"]


def test_a_program_that_nobody_registered_is_asked_for_by_its_plan(mesh):
    step = jitted(mesh, lambda x: all_reduce(x, "0123abcd"))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="psum over 'data': its program belongs to plan test, which this"
    ):
        step(np.zeros((RANKS, 4), np.float32))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda site: site[:-2], r"a call site's record is damaged at byte \d+.\n  Cure: recompile the step"),
        (lambda site: site.replace("4:psum", "9999:psum"), "a call site's record is damaged at byte 5"),
        (
            lambda site: site.replace("3:sum", "7:product"),
            "psum over 'data': unknown kind 'all_reduce' or reduction 'pr",
        ),
        (lambda site: site.replace("0 7 ", "0 6 "), "psum over 'data': group 0 of 8 ranks has device 6 twice"),
        (lambda site: site.replace("1 6:direct ", "0 "), "psum over 'data': group 0 of 8 ranks lacks its schedule"),
    ],
)
def test_a_damaged_record_of_a_call_site_is_refused(mesh, change, error):
    site = change(record("direct", plan="none"))
    step = jitted(
        mesh, lambda x: jax.ffi.ffi_call(ffi.TARGET, jax.typeof(x), input_output_aliases={0: 0})(x, site=site)
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=error):
        step(np.zeros((RANKS, 4), np.float32))


def test_a_program_for_other_ranks_is_refused(mesh):
    program = ffi.register_program(compile(schedules.direct(4)))
    step = jitted(mesh, lambda x: all_reduce(x, program))
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program is for 4 ranks, the group has 8"):
        step(np.zeros((RANKS, 4), np.float32))


@pytest.mark.parametrize(("kind", "what"), [("reduce_scatter", "reduce-scatter"), ("all_gather", "all-gather")])
def test_a_program_that_reaches_beyond_the_slices_is_refused(mesh, kind, what):
    chunk, chunks = 2_999_999, 3_000_000
    everyone = tuple(range(RANKS))
    program = ffi.register_program(Program(RANKS, chunks, (ProgramOp(0, chunk, everyone, everyone, ()),)).encode())

    def step(x):
        small, large = (4, 4 * RANKS)
        shape = small if kind == "reduce_scatter" else large
        x = jnp.resize(x, large if kind == "reduce_scatter" else small)
        call = jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct((shape,), x.dtype))
        return call(x, site=record(program, kind=kind))

    message = f"psum over 'data': a program of 3000000 chunks cannot {what} over 8 ranks"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jitted(mesh, step)(np.zeros((RANKS, 4), np.float32)))


@pytest.mark.parametrize("data", [b"", b"abc", compile(schedules.ring(4))[:-4], b"\0" * 20])
def test_malformed_programs_are_refused_with_the_place(data):
    with pytest.raises(PlanError, match="program"):
        ffi.register_program(data)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_deadlines_are_positive(seconds):
    with pytest.raises(ValueError, match="deadline_s"):
        ffi.set_deadline(seconds)


def test_the_core_says_what_it_runs_on():
    assert ffi.kernel_isa() in {"avx512", "avx2", "neon", "plain"}
    assert 0 < ffi.floor_seconds(2, 4096) < 1


def test_a_floor_that_cannot_be_measured_is_an_error():
    for nbytes, dtype in (1 << 60, "float32"), (4096, "int8"):
        with pytest.raises(JaxcommError, match=f"8 buffers of {nbytes} bytes of {dtype} cannot be timed here"):
            ffi.floor_seconds(8, nbytes, dtype)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one processor needs no other thread")
def test_a_floor_that_lacks_a_thread_is_an_error():
    script = """
        import ctypes
        from jaxcomm import ffi
        from jaxcomm.errors import JaxcommError
        libc = ctypes.CDLL(None)
        attributes = ctypes.create_string_buffer(256)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 60))
        libc.pthread_setattr_default_np(attributes)
        try:
            ffi.floor_seconds(2, 4096)
        except JaxcommError as error:
            print("a higher limit on threads" in str(error))
    """
    assert in_process(script) == ["True"]
