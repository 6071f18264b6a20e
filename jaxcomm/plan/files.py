"""Reads plans from disk and checks them fully. Writes plans whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from jaxcomm import files
from jaxcomm.errors import PlanError
from jaxcomm.plan.proof import verify_embedded
from jaxcomm.plan.schema import VERSION, Plan

MAX_BYTES: Final = 16 * 2**20
_KIND: Final = files.Kind(
    "plan", VERSION, Plan, PlanError, "`jaxcomm plan profile.json`", unions=("schedule", "early", "late")
)


def load(path: str | os.PathLike[str], roles: Mapping[str, int] | None = None, ranks: int | None = None) -> Plan:
    """Reads the plan in a plan.json, and proves it.

    Args:
      path: the file, at most 16 MiB.
      roles: ranks for the plan's roles, such as `{"straggler": 5}`; other roles stay as the file binds them.
      ranks: number of ranks that the plan must be for; None allows any number.

    Returns:
      The plan. Every value was checked, and the parts that the file itself defines, such as its template, were proved.

    Raises:
      PlanError: the file cannot be read, is not a plan, is damaged, has a later version, is for another number of
        ranks, or holds an invalid value or a template that does not give the sum. The error text names the file and the
        JSON path.

    Example:
      >>> plan = jaxcomm.plan.load("plan.json", ranks=8)
      >>> plan.roles
      {'straggler': 3}
    """
    where = os.fspath(path)
    plan = decode(files.read(where, MAX_BYTES, PlanError), where)
    if ranks is not None and ranks != plan.ranks:
        problem = f"matches.ranks is {plan.ranks}; this job has {ranks} ranks"
        raise PlanError(files.mistake(where, problem, f"plan from a profile of {ranks} ranks, or run on {plan.ranks}"))
    if roles:
        plan = bind(plan, roles, where)
    try:
        verify_embedded(plan)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    return plan


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes plan.json whole or not at all: under a temporary name in the same folder, then renamed.

    Args:
      plan: the plan.
      path: the file to make or replace.

    Raises:
      PlanError: the file cannot be written.

    Example:
      >>> plan = jaxcomm.plan.load("plan.json")
      >>> jaxcomm.plan.save(plan, "copy.json")
      >>> jaxcomm.plan.load("copy.json") == plan
      True
    """
    files.write(path, encode(plan), PlanError)


def bind(plan: Plan, roles: Mapping[str, int], where: str = "plan") -> Plan:
    """The plan with roles bound to other ranks. The plan's hash changes, too.

    Args:
      plan: a plan.
      roles: the new rank of each role that changes.
      where: the plan's name in error texts.

    Raises:
      PlanError: a role that the plan does not have, or a rank that does not exist.

    Example:
      >>> plan = jaxcomm.plan.load("late_rank.json")
      >>> plan.roles["straggler"], jaxcomm.plan.bind(plan, {"straggler": 5}).roles["straggler"]
      (3, 5)
    """
    for name in roles:
        if name not in plan.roles:
            known = ", ".join(sorted(plan.roles)) or "none"
            raise PlanError(files.mistake(where, f"has no role {name!r}; its roles are: {known}", "bind one of these"))
    return validate({**plan.model_dump(exclude={"hash"}), "roles": {**plan.roles, **roles}}, where)


def encode(plan: Plan) -> str:
    """The text of a plan's file, indented for readers; each list of numbers stays on one line.

    Example:
      >>> jaxcomm.plan.encode(jaxcomm.plan.load("plan.json")).startswith("{")
      True
    """
    text = json.dumps(plan.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[[-\d,\s]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def decode(data: bytes, where: str) -> Plan:
    """The plan in the bytes of a file. Its values and hash are checked; its schedules are not yet proved.

    Args:
      data: the bytes.
      where: the file's name in error texts.

    Raises:
      PlanError: see `load`.
    """
    document = _KIND.parse(data, where)
    claimed = document.pop("hash", None) if isinstance(document, dict) else None
    plan = validate(document, where)
    if claimed != plan.hash:
        problem = f"hash is {files.short(claimed)}, but the content has {plan.hash}: it was changed or damaged"
        raise PlanError(files.mistake(where, problem, f'{_KIND.again}; after an edit by hand set "hash" to the latter'))
    return plan


def validate(document: Any, where: str) -> Plan:
    """Makes a plan from a decoded plan file, from which `hash` has been removed.

    Args:
      document: the decoded JSON, without `hash`.
      where: the name of the document's source in error texts.

    Raises:
      PlanError: an invalid value, with its JSON path and the cure.
    """
    return _KIND.validate(document, where)
