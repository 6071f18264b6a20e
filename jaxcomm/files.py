"""Reads files up to a limit, writes them whole or not at all, and parses our JSON files by their kind and version."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import pydantic
from pydantic import Field
from pydantic_core import PydanticCustomError

from jaxcomm.errors import JaxcommError
from jaxcomm.log import printable

Model = TypeVar("Model", bound=pydantic.BaseModel)

# The types of the numbers and texts in profiles, with their bounds.
Seconds = Annotated[float, Field(ge=0, le=1e9, strict=True, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=2**60, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**60, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=2**31, strict=True)]
Text = Annotated[str, Field(max_length=4096)]


def wrong_below(place: str, problem: str) -> PydanticCustomError:
    """The error that a model's validator raises about a field inside the model.

    Args:
      place: the field's path, which begins at the model, such as "arrivals[3]".
      problem: the rest of the sentence that begins with `place`.
    """
    return PydanticCustomError("wrong_below", "{place} {problem}", {"place": place, "problem": problem})


class Value(pydantic.BaseModel):
    """The base of all values in our files. Values are frozen, and have only the fields that the model names."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


def read(path: str | os.PathLike[str], limit: int, error: type[JaxcommError]) -> bytes:
    """A file's bytes.

    Raises:
      error: the file cannot be read, or has more than `limit` bytes.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise error(mistake(path, f"cannot be read: {reason}", "check the path")) from None
    if len(data) > limit:
        raise error(mistake(path, f"is larger than {limit >> 20} MiB", "check the path, or shorten the file"))
    return data


def write(path: str | os.PathLike[str], data: str | bytes, error: type[JaxcommError] = JaxcommError) -> None:
    """Writes a file under a temporary name in its folder, then renames it.

    Follows links. A path that is not a regular file, such as a pipe, is written to directly.

    Raises:
      error: the file cannot be written.
    """
    target, content = Path(path), data.encode() if isinstance(data, str) else data
    with _writing(target, error):
        if not _is_replaced(target):
            target.write_bytes(content)
            return
        target = target.resolve()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise


def check_writable(*paths: str | os.PathLike[str] | None) -> None:
    """Checks, before long work, that files can be written; ignores None.

    Raises:
      JaxcommError: a file cannot be written.
    """
    for target in (Path(path) for path in paths if path is not None):
        with _writing(target, JaxcommError):
            if _is_replaced(target):
                tempfile.TemporaryFile(dir=target.resolve().parent).close()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Makes the folder and its parents if they are missing.

    Raises:
      JaxcommError: the folder cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise JaxcommError(mistake(folder, f"cannot be made a folder: {reason}", "choose another place")) from None
    return folder


@contextlib.contextmanager
def _writing(target: Path, error: type[JaxcommError]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:  # ValueError: a NUL; RuntimeError: links in a circle
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise error(mistake(target, f"cannot be written: {reason}", "choose another place")) from None


def _is_replaced(target: Path) -> bool:
    """Whether `write` puts a new file in the target's place: the target is a regular file, or does not exist.

    Raises:
      OSError: the target is a folder.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return target.is_file() or not target.exists()


def mistake(where: object, problem: str, cure: str) -> str:
    """The error text about a mistake in a file."""
    return f"{printable(f'{where}: {problem}')}.\n  Cure: {cure}."


@dataclass(frozen=True)
class Kind(Generic[Model]):
    """A kind of file: a JSON object with its `format`, its `version` and the fields of a model.

    Attributes:
      name: the kind's name. Files of the kind "plan" have the `format` "jaxcomm-plan".
      version: the version that this jaxcomm reads; greater versions are from a later jaxcomm.
      model: the model of the file's content.
      error: the error that is raised for every mistake, with the JSON path and the cure.
      source: the command or call that makes such files, for the cure.
      unions: the fields of the model that hold one of several models.
    """

    name: str
    version: int
    model: type[Model]
    error: type[JaxcommError]
    source: str
    unions: tuple[str, ...] = ()

    def parse(self, data: bytes, where: str) -> Any:
        """The JSON document in a file's bytes. Repeated fields are an error. `where` names the file in errors."""
        try:
            return json.loads(data, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as problem:
            cure = f"{self.again}; the file may be cut short"
            raise self.error(mistake(where, f"is not JSON: {problem}", cure)) from None

    def validate(self, document: Any, where: str) -> Model:
        """The content of a JSON document. `where` names the document in errors."""
        tag = f"jaxcomm-{self.name}"
        if not isinstance(document, dict) or document.get("format") != tag:
            mistaken = f'is not a jaxcomm {self.name}: no "format": "{tag}"'
            raise self.error(mistake(where, mistaken, f"make one with {self.source}"))
        version = document.get("version")
        if isinstance(version, int) and version > self.version:
            mistaken = f"version is {version}; this jaxcomm reads version {self.version}"
            raise self.error(mistake(where, mistaken, f"upgrade jaxcomm, or {self.again}"))
        try:
            return self.model.model_validate(document)
        except pydantic.ValidationError as problem:
            mistaken = explain(problem, f"a version {self.version} {self.name}", self.unions)
            raise self.error(mistake(where, mistaken, f"{self.again}, or mend the value by hand")) from None

    @property
    def again(self) -> str:
        """The cure for a broken file."""
        return f"make the {self.name} again with {self.source}"


def explain(problem: pydantic.ValidationError, kind: str, unions: tuple[str, ...] = ()) -> str:
    """A document's first mistake, with its place, and the number of the other mistakes.

    Args:
      problem: the error of the document's validation.
      kind: the kind of document, in words.
      unions: the fields of the model that hold one of several models.
    """
    more = problem.error_count() - 1
    others = f" ({more} more error{'s' * (more > 1)})" if more else ""
    return _explain(problem.errors(include_url=False)[0], kind, unions) + others


def _explain(error: Any, kind: str, unions: tuple[str, ...]) -> str:
    path = _json_path(error["loc"], unions)
    match error["type"]:
        case "missing":
            return f"{path} is missing"
        case "extra_forbidden":
            return f"{path} is not a field of {kind}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "wrong_below":
            return f"{path}.{error['msg']}".removeprefix(".")
        case "too_long" if isinstance(error["input"], list):
            return f"{path} has {len(error['input'])} entries; at most {error['ctx']['max_length']} are possible"
        case "too_short" if isinstance(error["input"], list):
            return f"{path} has {len(error['input'])} entries; at least {error['ctx']['min_length']} are needed"
        case "union_tag_invalid":
            return f"{path}.kind is {short(error['ctx']['tag'])}; it must be one of {error['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{path}.kind is missing"
    return f"{path} is {short(error['input'])}; it must be {error['msg'].removeprefix('Input should be ')}"


def _json_path(location: tuple[int | str, ...], unions: tuple[str, ...]) -> str:
    """A pydantic location as a JSON path, without the tags that pydantic adds after union fields or in <brackets>."""

    def is_tag(before: int | str | None, part: int | str) -> bool:
        return isinstance(part, str) and (before in unions or part.startswith("<"))

    places = zip((None, *location), location, strict=False)
    parts = [part for before, part in places if not is_tag(before, part)]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def canonical(document: Any) -> bytes:
    """A JSON document's canonical bytes: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def short(value: object) -> str:
    """A value for an error text, in at most 70 characters."""
    text = repr(value)
    return text if len(text) <= 70 else text[:67] + "..."


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {name!r} stands twice in one object")
    return fields
