"""The element types that the core sums. For other types, such as 8-bit floats (fp8), jax.lax's collectives run."""

from __future__ import annotations

REAL = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}.items()
    for bits in sizes
) | {"bfloat16"}
COMPLEX = frozenset({"complex64", "complex128"})
