"""The element types that the core sums. Others, such as 8-bit floats (fp8), run as jax.lax's collectives."""

from __future__ import annotations

REAL = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}.items()
    for bits in sizes
) | {"bfloat16"}
COMPLEX = frozenset({"complex64", "complex128"})
