"""Plans on disk: read with every check, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pydantic

from jaxcomm.errors import PlanError
from jaxcomm.plan.proof import check_template
from jaxcomm.plan.schema import FORMAT, VERSION, Plan

MAX_BYTES: Final = 16 * 2**20
_AGAIN: Final = "make the plan again with `jaxcomm plan profile.json`"


def load(path: str | os.PathLike[str], roles: Mapping[str, int] | None = None, ranks: int | None = None) -> Plan:
    """The plan in a plan.json, proved.

    Args:
      path: the file, at most 16 MiB.
      roles: ranks for the plan's roles, such as `{"straggler": 5}`; the others stay as the file binds them.
      ranks: number of ranks that the plan must be for; None takes any.

    Returns:
      The plan. Every value was checked, and its template proved to give every rank the sum.

    Raises:
      PlanError: the file cannot be read, is no plan, is damaged, of a later version, for other ranks, holds a value
        that cannot be, or a template that does not give the sum. The message names the file and the JSON path.
    """
    where = os.fspath(path)
    plan = decode(_read(where), where)
    if ranks is not None and ranks != plan.ranks:
        raise _error(
            where,
            f"matches.ranks is {plan.ranks}; this job has {ranks} ranks",
            f"plan from a profile of {ranks} ranks, or run on {plan.ranks}",
        )
    if roles:
        plan = bind(plan, roles, where)
    try:
        check_template(plan)
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
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(encode(plan))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise _error(target, f"cannot be written: {error.strerror}", "choose another place") from None


def bind(plan: Plan, roles: Mapping[str, int], where: str = "plan") -> Plan:
    """The plan with roles bound to other ranks; its hash changes with them.

    Args:
      plan: a plan.
      roles: the new ranks.
      where: how to call the plan in errors.

    Raises:
      PlanError: a role that the plan does not have, or a rank that does not exist.
    """
    for name in roles:
        if name not in plan.roles:
            known = ", ".join(sorted(plan.roles)) or "none"
            raise _error(where, f"has no role {name!r}; its roles are: {known}", "bind one of these")
    return validate({**plan.model_dump(exclude={"hash"}), "roles": {**plan.roles, **roles}}, where)


def encode(plan: Plan) -> str:
    """The text of a plan's file, indented for people; lists of numbers stay on one line."""
    text = json.dumps(plan.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[[-\d,\s]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def decode(data: bytes, where: str) -> Plan:
    """The plan in the bytes of a file, its values and hash checked, its schedules not yet proved.

    Args:
      data: the bytes.
      where: how to call them in errors.

    Raises:
      PlanError: see `load`.
    """
    try:
        document = json.loads(data.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise _error(where, f"is not JSON: {error}", f"{_AGAIN}; the file may be cut short") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _error(
            where, f'is not a jaxcomm plan: no "format": "{FORMAT}"', "make one with `jaxcomm plan profile.json`"
        )
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise _error(
            where, f"version is {version}; this jaxcomm reads version {VERSION}", f"upgrade jaxcomm, or {_AGAIN}"
        )
    claimed = document.pop("hash", None)
    plan = validate(document, where)
    if claimed != plan.hash:
        raise _error(
            where,
            f"hash is {_short(claimed)}, but the content has {plan.hash}: it was changed or damaged",
            f'{_AGAIN}; after an edit by hand set "hash" to the latter',
        )
    return plan


def validate(document: Any, where: str) -> Plan:
    """A plan from a JSON document without its hash, or an error that names the place.

    Args:
      document: the decoded JSON.
      where: how to call its source in errors.

    Raises:
      PlanError: a value that cannot be; with its JSON path and the cure.
    """
    try:
        return Plan.model_validate(document)
    except pydantic.ValidationError as error:
        first, more = error.errors(include_url=False)[0], error.error_count() - 1
        others = f" ({more} more error{'s' * (more > 1)})" if more else ""
        raise _error(where, _explain(first) + others, f"{_AGAIN}, or mend the value by hand") from None


def _read(where: str) -> bytes:
    try:
        with open(where, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise _error(where, f"cannot be read: {reason}", "check the path") from None
    if len(data) > MAX_BYTES:
        raise _error(where, f"is larger than {MAX_BYTES >> 20} MiB, which no plan is", "check the path")
    return data


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {max(names, key=names.count)!r} stands twice in one object")
    return fields


def _no_constants(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _explain(error: Any) -> str:
    path = _json_path(error["loc"])
    match error["type"]:
        case "missing":
            return f"{path} is missing"
        case "extra_forbidden":
            return f"{path} is not a field of a version {VERSION} plan"
        case "value_error":
            return str(error["ctx"]["error"])
        case "union_tag_invalid":
            return f"{path}.kind is {_short(error['ctx']['tag'])}; it must be one of {error['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{path}.kind is missing"
    return f"{path} is {_short(error['input'])}; it must be {error['msg'].removeprefix('Input should be ')}"


def _json_path(location: tuple[int | str, ...]) -> str:
    """A pydantic location as a JSON path; the tag that pydantic puts behind a union's field is no part of it."""
    parts = [part for before, part in zip((None, *location), location, strict=False) if before != "schedule"]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 70 else text[:67] + "..."


def _error(where: object, what: str, cure: str) -> PlanError:
    return PlanError(f"{where}: {what}.\n  Cure: {cure}.")
