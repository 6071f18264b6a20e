"""The dashboard of `recipes/monitoring`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[2] / "recipes" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((RECIPE / "dashboard.json").read_text())


def expressions() -> list[str]:
    """The queries of all panels."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
