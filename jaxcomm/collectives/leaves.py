"""The name of a tree's leaf in plans, profiles and drops."""

from __future__ import annotations

from typing import Any

import jax


def leaf_name(path: Any) -> str:
    """The name of the leaf at this key path, such as "layer/kernel"."""
    name: str = jax.tree_util.keystr(path, simple=True, separator="/")
    return name
