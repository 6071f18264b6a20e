"""The errors a user of jaxcomm may meet. Each message says which value, where, and what to do.

What fails while a compiled step runs, JAX raises as an error of its own around our text: where the step is waited for,
or where its result is used. `translated` raises ours in its place, with the ranks that it names as attributes:

    try:
        with jaxcomm.errors.translated():
            params = jax.block_until_ready(step(params, batch))
    except jaxcomm.errors.DeadlineError as error:
        print(error.missing, error.waiting)
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

# Packages that only some uses of jaxcomm need, with the extra that installs each.
_EXTRAS: Final = {
    "flax": "demo",
    "matplotlib": "plot",
    "optax": "train",
    "ortools": "planner",
    "scipy": "planner",
    "sklearn": "demo",
}

# The sentences of cc/base/errors.h.
_CALL: Final = (
    r"(?P<name>[^:\n]+?)(?: #(?P<number>\d+))? over '(?P<axes>.*?)'(?: \([^()]*?(?:, plan (?P<plan>[^()]*))?\))?"
)
_LATE: Final = re.compile(
    rf"DeadlineError: {_CALL}: ranks? (?P<missing>[\d,-]+) of (?:the group )?[\d,-]+ ha(?:s|ve) not "
    r"(?:arrived|sent all messages|done op \d+) after (?P<seconds>[\d.]+) s; (?:rank )?(?P<waiting>[\d,-]*) waits?\b"
)
_MISMATCH: Final = re.compile(
    rf"MismatchError: {_CALL}: rank (?P<rank>\d+) says that the groups are \[(?P<says>[-\d ]*)\], "
    r"rank (?P<other>\d+) said \[(?P<said>[-\d ]*)\]"
)
_DIFFERENT: Final = re.compile(
    rf"MismatchError: {_CALL}: rank (?P<rank>\d+)(?: \(process[^()]*\))? is in (?P<does>.*?); "
    r"rank (?P<other>\d+)(?: \(process[^()]*\))? is in (?P<did>.*?)"
    r"\.(?:\n|$)"
)
_OURS: Final = re.compile(r"(?:^|: )jaxcomm: (.*?)(?=: jaxcomm: |\Z)", re.DOTALL)


class JaxcommError(Exception):
    """Base class of every error that jaxcomm raises on purpose."""


class PlanError(JaxcommError, ValueError):
    """A plan, schedule or program that is malformed or that does not compute the collective."""


class ProfileError(JaxcommError, ValueError):
    """A profile or a measurement file that cannot be used."""


class DeadlineError(JaxcommError):
    """Ranks of a call had not arrived when its deadline passed. The next call works.

    What the message does not name is empty, or None. With `axis_index_groups`, ranks count within their group.

    Attributes:
      name: the function that was called, and of which bucket: "psum".
      number: of the call in this process, as in the message.
      axes: names of the axes, with commas.
      plan: the first letters of the plan's hash; without one "direct" or "ring"; "auto" before a run has made one.
      missing: the ranks that have not arrived.
      waiting: the ranks that have.
      seconds: how long the first of them waited.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        found = _LATE.search(message)
        fields = found.groupdict(default="") if found else dict.fromkeys(_LATE.groupindex, "")
        self.name, self.axes, self.plan = fields["name"], fields["axes"], fields["plan"]
        self.number = int(fields["number"]) if fields["number"] else None
        self.seconds = float(fields["seconds"]) if fields["seconds"] else None
        self.missing, self.waiting = (_ranks(fields[name]) for name in ("missing", "waiting"))


class MismatchError(JaxcommError):
    """Ranks of one call brought different groups, or are in different calls.

    Attributes:
      name: the function that was called.
      axes: names of the axes, with commas.
      groups: by rank, for two that differ, the group of every rank as this one says it; else empty.
      calls: by rank, for two that are in different calls, the call in words; else empty.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        groups, calls = _MISMATCH.search(message), _DIFFERENT.search(message)
        found = groups or calls
        self.name, self.axes = (found["name"], found["axes"]) if found else ("", "")
        said = {groups["rank"]: groups["says"], groups["other"]: groups["said"]} if groups else {}
        self.groups = {int(rank): _numbers(text, " ") for rank, text in said.items()}
        does = {calls["rank"]: calls["does"], calls["other"]: calls["did"]} if calls else {}
        self.calls = {int(rank): text for rank, text in does.items()}


def from_jax(error: BaseException) -> JaxcommError | None:
    """The error that jaxcomm reported of a failed step, from the one that JAX raised; None if jaxcomm reported none.

    Where several calls failed together it is the first that JAX names.

    Args:
      error: any exception; JAX raises `jax.errors.JaxRuntimeError`.
    """
    found = _OURS.search(str(error)) if isinstance(error, RuntimeError | ValueError) else None
    if found is None:
        return None
    text = found[1]
    for kind in (DeadlineError, MismatchError):
        if f"{kind.__name__}: " in text:
            return kind(text)
    return JaxcommError(text)


@contextmanager
def translated() -> Iterator[None]:
    """Raises what jaxcomm reported in place of the error in which JAX wraps it; leaves all other errors alone.

    Steps run while Python goes on, so wait inside for what the step returns: `jax.block_until_ready(step(...))`.

    Raises:
      JaxcommError: the error that `from_jax` finds, with JAX's as its cause.
    """
    try:
        yield
    except Exception as error:
        if (ours := from_jax(error)) is None:
            raise
        raise ours from error


def load_extra(module: str, use: str) -> Any:
    """Imports a module of one of these packages.

    Args:
      module: its full name.
      use: the part of jaxcomm that needs it, for the message.

    Raises:
      JaxcommError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise JaxcommError(missing_extra(package, use)) from None


def require_extras(use: str, *packages: str) -> None:
    """Checks that packages are installed; imports none.

    Raises:
      JaxcommError: as `load_extra`.
    """
    for package in packages:
        if not is_installed(package):
            raise JaxcommError(missing_extra(package, use))


def missing_extra(package: str, use: str) -> str:
    """The message that `use` needs a package, with the cure."""
    wanted = f"'jaxcomm[{_EXTRAS[package]}]'" if package in _EXTRAS else package
    return f"{use} needs the package {package}.\n  Cure: pip install {wanted}"


def is_installed(package: str) -> bool:
    """Whether a package can be imported; does not import it."""
    return importlib.util.find_spec(package) is not None


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(separator) if number)


def _ranks(text: str) -> tuple[int, ...]:
    """ "0-2,4" is 0, 1, 2 and 4."""
    ranges = [_numbers(each, "-") for each in text.split(",") if each]
    return tuple(rank for each in ranges for rank in range(each[0], each[-1] + 1))
