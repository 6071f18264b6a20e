"""Rounds predicted numbers before a plan holds them."""

from __future__ import annotations


def significant(value: float) -> float:
    """Rounds to nine significant figures. Further figures differ between machines that add in different orders."""
    return float(f"{value:.9g}")
