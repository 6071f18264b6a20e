"""The dashboard's structure is the one that Grafana imports."""

from __future__ import annotations

import itertools
from typing import Any

from jsonschema import Draft202012Validator

from tests.metrics.monitoring import DASHBOARD

SOURCE = {
    "type": "object",
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
    "required": ["type", "uid"],
}
PLACE = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": 0, "maximum": most}
        for name, most in zip("xywh", (23, 999, 24, 40), strict=True)
    },
    "required": [*"xywh"],
    "additionalProperties": False,
}
TARGET = {
    "type": "object",
    "properties": {
        "refId": {"pattern": "^[A-Z]$"},
        "expr": {"minLength": 1},
        "legendFormat": {"minLength": 1},
        "datasource": SOURCE,
    },
    "required": ["refId", "expr", "legendFormat", "datasource"],
}
PANEL = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 1}, "title": {"minLength": 1}, "gridPos": PLACE},
    "required": ["id", "title", "type", "gridPos"],
    "oneOf": [
        {"properties": {"type": {"const": "row"}, "panels": {"maxItems": 0}}, "required": ["panels", "collapsed"]},
        {
            "properties": {
                "type": {"enum": ["timeseries", "stat"]},
                "datasource": SOURCE,
                "targets": {"type": "array", "items": TARGET, "minItems": 1},
                "fieldConfig": {"required": ["defaults", "overrides"]},
            },
            "required": ["datasource", "targets", "fieldConfig", "options", "description"],
        },
    ],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "uid": {"pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "title": {"minLength": 1},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {"type": "array", "items": PANEL, "minItems": 1},
        "templating": {"properties": {"list": {"type": "array", "items": {"required": ["name", "type", "query"]}}}},
    },
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
}


def test_the_dashboard_has_grafanas_fields() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(DASHBOARD)
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "job"]


def test_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh"))
        assert any(apart), (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
