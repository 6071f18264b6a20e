"""The CPU side of `jaxcomm check`: runs the core on eight host devices and compares it with jax.lax."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli.common.host_devices import use_host_devices

SECTIONS = {
    "exact": "every collective and element type against jax.lax, and the same bits on all ranks",
    "deadline": "a rank that misses the deadline is named, and the next call is right",
    "kernels": "which instructions the reductions use on this processor",
    "speed": "jaxcomm.psum beside jax.lax.psum",
    "collectives": "the library that carries collectives of unchanged programs between CPU processes",
}
RANKS, ELEMENTS = 8, 1003
TIMED_BYTES, ROUNDS = (64 << 10, 4 << 20), 3
LATE, LATE_S, DEADLINE_S = 3, 1.0, 0.3
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))

Row = list[str]


class Wrong(Exception):
    """A fault that a section found."""


def why_off() -> str | None:
    """Gives JAX the host devices. Returns None, because the CPU sections have no requirements."""
    use_host_devices(RANKS)
    return None


def lacks(name: str) -> str | None:
    """Returns None: no section has requirements."""
    del name
    return None


def known() -> str:
    """Returns "": no results of earlier runs are kept."""
    return ""


def run(name: str, elapsed: float) -> dict[str, Any]:
    """Runs one section."""
    del elapsed  # unused: all sections together take only a minute
    sections = {"exact": exact, "deadline": deadline, "kernels": kernels, "speed": speed, "collectives": collectives}
    begun, rows, state = time.monotonic(), [], "passed"
    try:
        for row in sections[name]():
            rows.append(row)
    except Wrong as error:
        state = f"failed: {error}"
    return {"state": state, "seconds": round(time.monotonic() - begun, 1), "rows": rows}


def keep(results: dict[str, Any]) -> None:
    """Does nothing: these results are not kept."""
    del results


def about() -> dict[str, Any]:
    """The number of ranks, and the kernels' instruction set."""
    from jaxcomm import ffi

    return {"ranks": RANKS, "kernel_isa": ffi.kernel_isa()}


def summary() -> str:
    """The line that is printed after all sections."""
    return f"The CPU core was checked on {RANKS} host devices of this machine."


def exact() -> Iterator[Row]:
    """Compares results for small whole numbers with jax.lax's results, and the bits of rounded results across ranks."""
    import jax

    yield ["collective", "types", "wrong elements", "ranks with other bits"]
    with jax.enable_x64(True):
        for name, (call, types) in _collectives().items():
            ours, theirs = _over(functools.partial(call, "jaxcomm")), _over(functools.partial(call, "lax"))
            wrong = other_bits = 0
            for dtype in types:
                x = _whole_numbers(dtype)
                wrong += int((np.asarray(ours(x)) != np.asarray(theirs(x))).sum())
                if name in ("psum", "pmax", "pmin"):
                    result = np.asarray(ours(_random(dtype)))
                    other_bits += sum(row.tobytes() != result[0].tobytes() for row in result)
            yield [name, str(len(types)), str(wrong), str(other_bits)]
            if wrong or other_bits:
                raise Wrong(f"{name}: {wrong} elements differ from jax.lax's, {other_bits} ranks from rank 0")


def deadline() -> Iterator[Row]:
    """Makes one rank later than the deadline, and checks that the error names this rank."""
    import jax
    import jax.numpy as jnp

    import jaxcomm
    from jaxcomm import ffi

    def step(x: jax.Array) -> jax.Array:
        late = jnp.where(jax.lax.axis_index("data") == LATE, x[0, 0] * LATE_S, 0.0)
        result: jax.Array = jaxcomm.psum(ffi.delay(x, late), "data")
        return result

    run_step = _over(step)
    x = np.zeros((RANKS, ELEMENTS), np.float32)
    run_step(x)
    ffi.set_deadline(DEADLINE_S)
    try:
        run_step(x + 1)
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
    else:
        raise Wrong("a rank that was late by more than the deadline caused no error")
    finally:
        ffi.set_deadline(60.0)
    yield ["message"]
    yield [next((line for line in message.splitlines() if "DeadlineError" in line), message.splitlines()[0])]
    if f"rank {LATE} of {RANKS} has not arrived" not in message:
        raise Wrong(f"the error does not name rank {LATE}")
    if np.asarray(run_step(x)).any():
        raise Wrong("the next call is wrong")


def kernels() -> Iterator[Row]:
    """The instruction set that the kernels use."""
    from jaxcomm import ffi

    yield ["processor", "instructions"]
    yield [platform.machine(), ffi.kernel_isa()]


def speed() -> Iterator[Row]:
    """Measures the times of jaxcomm and jax.lax in turns. A slow side is not a failure."""
    from jaxcomm.cli import bench_psum
    from jaxcomm.report.tables import bytes_text, seconds_text

    yield ["bytes of a rank", "jax.lax", "jaxcomm", "ratio", "over the memory's floor"]
    for nbytes in TIMED_BYTES:
        row = bench_psum.measure("lax", "all_reduce", RANKS, None, nbytes, 1, ROUNDS, lambda: None)
        times = [seconds_text(row["peer_s"]), seconds_text(row["jaxcomm_s"])]
        yield [bytes_text(row["bytes"]), *times, f"{row['ratio']:.2f}", f"{row['over_floor']:.2f}"]
        if row["wrong"]:
            raise Wrong(f"{row['wrong']} elements differ from jax.lax's")


def collectives() -> Iterator[Row]:
    """The library that runs collectives between CPU processes under this command's environment variables."""
    yield ["carried by", "why not jaxcomm"]
    yield [*jaxlib_variables.implementation()]


def _collectives() -> dict[str, tuple[Callable[..., Any], tuple[str, ...]]]:
    """For each collective: the function call(side, x), with the side "jaxcomm" or "lax", and the types to check."""
    import jax

    import jaxcomm

    def named(name: str, **options: Any) -> Callable[..., Any]:
        sides = {"jaxcomm": getattr(jaxcomm, name), "lax": getattr(jax.lax, name)}
        return lambda side, x: sides[side](x, "data", **options)

    def scatter(side: str, x: jax.Array) -> Any:
        return named("psum_scatter", tiled=True)(side, x[0, : RANKS * 125])[None]

    real = (*INTEGERS, *FLOATS[:4])
    return {
        "psum": (named("psum"), (*INTEGERS, *FLOATS)),
        "pmean": (named("pmean"), FLOATS),
        "pmax": (named("pmax"), real),
        "pmin": (named("pmin"), real),
        "psum_scatter": (scatter, (*INTEGERS, *FLOATS)),
        "all_gather": (named("all_gather", axis=1, tiled=True), (*INTEGERS, *FLOATS)),
    }


def _over(call: Callable[[Any], Any]) -> Callable[[np.ndarray], Any]:
    """Jits the call, with one row of its operand on each device."""
    import jax

    from jaxcomm.cli.common import spmd

    mesh = spmd.mesh(RANKS)
    step = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False))
    return lambda x: spmd.wait(step(spmd.place(x, mesh, spmd.SPLIT)))


def _whole_numbers(dtype: str) -> np.ndarray:
    low = 0 if dtype.startswith("uint") else -8
    return np.random.default_rng(1).integers(low, 8, (RANKS, ELEMENTS)).astype(_numpy(dtype))


def _random(dtype: str) -> np.ndarray:
    return (np.random.default_rng(2).standard_normal((RANKS, ELEMENTS)) * 100).astype(_numpy(dtype))


def _numpy(dtype: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
