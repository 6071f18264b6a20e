"""How predicted numbers are rounded before a plan holds them."""

from __future__ import annotations


def significant(value: float) -> float:
    """Nine significant figures: more would differ between machines that add in another order."""
    return float(f"{value:.9g}")
