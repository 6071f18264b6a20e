"""Collective communication for JAX, planned from measurements of the cluster.

Profile the cluster, plan from the profile, and run the plan. `jaxcomm.psum` and the other collectives compute the same
results as `jax.lax`'s functions of the same names, but follow a plan.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcomm import (
        backend,
        elastic,
        equinox,
        errors,
        lax,
        metrics,
        nnx,
        plan,
        planner,
        profile,
        report,
        schedules,
        train,
    )
    from jaxcomm.collectives import (
        all_gather,
        grad,
        pcast,
        pmax,
        pmean,
        pmin,
        psum,
        psum_scatter,
        replace_lax,
        value_and_grad,
    )
    from jaxcomm.collectives.active_plan import use_plan
    from jaxcomm.errors import JaxcommError, PlanError, ProfileError
    from jaxcomm.initialize import init
    from jaxcomm.statistics import reset_stats, stats

__version__ = "0.1.0"

# The module of each public name. A name is imported at its first use, because planning needs no JAX, and running needs
# no OR-Tools.
_HOMES = {
    **dict.fromkeys(["psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather", "replace_lax"], "collectives"),
    **dict.fromkeys(["grad", "pcast", "value_and_grad"], "collectives"),
    "use_plan": "collectives.active_plan",
    "init": "initialize",
    **dict.fromkeys(["JaxcommError", "PlanError", "ProfileError"], "errors"),
    **dict.fromkeys(["stats", "reset_stats"], "statistics"),
    **dict.fromkeys(
        [
            *("backend", "elastic", "equinox", "errors", "lax", "metrics", "nnx", "plan", "planner", "profile"),
            *("report", "schedules"),
            "train",
        ],
        "",
    ),
}

__all__ = [
    "JaxcommError",
    "PlanError",
    "ProfileError",
    "__version__",
    "all_gather",
    "backend",
    "elastic",
    "equinox",
    "errors",
    "grad",
    "init",
    "lax",
    "metrics",
    "nnx",
    "pcast",
    "plan",
    "planner",
    "pmax",
    "pmean",
    "pmin",
    "profile",
    "psum",
    "psum_scatter",
    "replace_lax",
    "report",
    "reset_stats",
    "schedules",
    "stats",
    "train",
    "use_plan",
    "value_and_grad",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'jaxcomm' has no attribute {name!r}")
        home = importlib.import_module(f"jaxcomm.{_HOMES[name] or name}")
        value = getattr(home, name) if _HOMES[name] else home
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__


# jaxcomm's JAX contexts must exist before JAX traces a step. This import creates them, because a program may use
# jaxcomm for the first time inside a step that JAX already traces.
if sys.modules.get("jax"):
    importlib.import_module("jaxcomm.jax_compat.contexts")
