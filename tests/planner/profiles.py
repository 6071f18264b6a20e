"""Profiles for the tests of planning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxcomm.profile import Bucket, Profile

STEADY = [0.01] * 20


def made(
    ranks: int = 4,
    delays: Sequence[float] | None = STEADY,
    buckets: Sequence[Bucket] = (),
    known: int | None = None,
    alpha: float = 3e-6,
    beta: float = 1e-11,
) -> Profile:
    """A profile in which the last rank is late by `delays`, one per step. None: the profile has no arrivals."""
    return Profile.model_validate(
        {
            "ranks": ranks,
            "link": {"alpha_s": alpha, "beta_s_per_byte": beta, "source": "made up"},
            "arrivals": [[0.0] * (ranks - 1) + [delay] for delay in delays or []],
            "buckets": buckets,
            "collective": {"bytes": known, "seconds": 1.0} if known else None,
            "provenance": {"source": "test", "tool": "hand"},
        }
    )


def with_tolerance(layers: int, ranks: int = 8, *, tables: Any = None, **tolerance: Any) -> dict[str, Any]:
    """The document of a profile with this tolerance and layers of 50, 100, … kB. Each layer has the fields `tables`."""
    entries = [{"name": f"layer{i}", "bytes": 50_000 * (i + 1), **(tables or {})} for i in range(layers)]
    return {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": ranks,
        "link": {"alpha_s": 3e-6, "beta_s_per_byte": 8e-11, "source": "made up"},
        "tolerance": {"layers": entries, **tolerance},
        "provenance": {"source": "made up", "tool": "test"},
    }


def gradients(sizes: list[int], apart: float) -> list[Bucket]:
    return [Bucket(name=f"layer{i}", bytes=size, ready_s=apart * i) for i, size in enumerate(sizes)]


def on_rails(source: Profile, **rails: tuple[float, float]) -> Profile:
    """The profile with rails of the given (α, β), measured by rings. Each rail is 10 % slower while others run."""
    n = source.ranks
    described = [
        {
            "name": name,
            "transport": "tcp",
            "latency": [
                {"bytes": 2**e, "seconds": 2 * (n - 1) * alpha + 2 * (n - 1) / n * 2**e * beta} for e in range(10, 28)
            ],
            "slowdown": 1.1,
        }
        for name, (alpha, beta) in rails.items()
    ]
    return Profile.model_validate({**source.model_dump(), "rails": described})
