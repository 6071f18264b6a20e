"""The JSON of commands, checked against the schemas in the documentation."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from jaxcomm import plan, profile

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "json"


@functools.cache
def schema(kind: str) -> dict[str, Any]:
    """The schema of a kind of JSON object."""
    found = json.loads((SCHEMAS / f"{kind}.json").read_text())
    Draft202012Validator.check_schema(found)
    return found


def document(text: str) -> dict[str, Any]:
    """Returns the one JSON object that a command printed. Validates the object against the schema of its kind."""
    found: dict[str, Any] = json.loads(text)
    kind = found["kind"]
    Draft202012Validator(schema(kind)).validate(found)
    for name, module in (("plan", plan), ("profile", profile)):
        if kind == name:
            Draft202012Validator(module.json_schema()).validate(found[name])
    return found
