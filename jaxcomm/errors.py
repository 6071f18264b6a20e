"""The errors that jaxcomm raises. Each error text names the wrong value, the place and the cure.

The texts of errors in calls, such as a passed deadline, are in `cc/base/error_texts.h`.

If a call fails in a compiled step, JAX raises its own error, which contains our text. JAX raises this error when the
program waits for the step or uses the step's result. `translated` raises our error instead, with the ranks as
attributes:

    try:
        with jaxcomm.errors.translated():
            params = jax.block_until_ready(step(params, batch))
    except jaxcomm.errors.DeadlineError as error:
        print(error.missing, error.waiting)
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

# For each optional package, the extra of jaxcomm that installs the package.
_EXTRAS: Final = {
    "equinox": "equinox",
    "flax": "demo",
    "matplotlib": "plot",
    "opentelemetry": "metrics",
    "optax": "train",
    "ortools": "planner",
    "rich": "cli",
    "prometheus_client": "metrics",
    "scipy": "planner",
    "shtab": "cli",
    "sklearn": "demo",
    "tensorboardX": "metrics",
}


class JaxcommError(Exception):
    """Base class of every error that jaxcomm raises on purpose."""


class PlanError(JaxcommError, ValueError):
    """A plan, schedule or program that is malformed or that does not compute the collective."""


class ProfileError(JaxcommError, ValueError):
    """A profile or a measurement file that cannot be used."""


_NO_RECORD: Final[Mapping[str, Any]] = {}


class DeadlineError(JaxcommError):
    """Some ranks of a call had not arrived when the call's deadline passed. The next call works.

    A field without a value is empty or None. With `axis_index_groups`, ranks are numbered within their group.

    Attributes:
      name: the function that was called, such as "psum", and the call's bucket if it has one.
      number: the call's number in this process, as in the error text.
      axes: names of the axes, with commas.
      plan: the first letters of the plan's hash; without a plan "direct" or "ring"; "auto" before the run has made a
        plan.
      missing: the ranks that had not arrived.
      waiting: the ranks that had arrived.
      seconds: the time that the first of the waiting ranks waited.
    """

    def __init__(self, message: str, record: Mapping[str, Any] = _NO_RECORD) -> None:
        super().__init__(message)
        self.name, self.axes, self.plan = (str(record.get(field, "")) for field in ("name", "axes", "plan"))
        self.number: int | None = record.get("number")
        self.seconds: float | None = record.get("seconds")
        self.missing, self.waiting = (tuple(record.get(field, ())) for field in ("missing", "waiting"))


class MismatchError(JaxcommError):
    """Ranks that must make the same call passed different groups, or made different calls.

    Attributes:
      name: the function that was called.
      axes: names of the axes, with commas.
      groups: maps two ranks that passed different groups to the tuples that they passed. A tuple has one group number
        per rank. Empty for other errors.
      calls: two ranks that made different calls, each with its call in words. Empty for other errors.
    """

    def __init__(self, message: str, record: Mapping[str, Any] = _NO_RECORD) -> None:
        super().__init__(message)
        self.name, self.axes = (str(record.get(field, "")) for field in ("name", "axes"))
        self.groups = {rank: tuple(groups) for rank, groups in record.get("groups", ())}
        self.calls = dict(record.get("calls", ()))


_KINDS: Final = {kind.__name__: kind for kind in (DeadlineError, MismatchError)}

# One lookup for each loaded core. A core keeps the failures that it has reported to XLA.
_lookups: list[Callable[[str], Mapping[str, Any] | None]] = []


def add_lookup(lookup: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Makes `from_jax` look up failures in a core.

    Args:
      lookup: takes a text that begins with a failure's message. Returns this message and the failure's record, or None
        if the core has no such failure.
    """
    _lookups.append(lookup)


def from_jax(error: BaseException) -> JaxcommError | None:
    """Returns the jaxcomm error that JAX's error for a failed step contains; None if JAX's error contains none.

    If several calls failed together, the result is the error that JAX names first. The error's fields are known only in
    the process in which the step ran, and only for the last 256 failures. Otherwise the error has only its text.

    Args:
      error: any exception; JAX raises `jax.errors.JaxRuntimeError`.
    """
    if not isinstance(error, RuntimeError | ValueError):
        return None
    _, is_ours, text = f": {error}".partition(": jaxcomm: ")
    if not is_ours:
        return None
    for lookup in _lookups:
        if (found := lookup(text)) is not None:
            message, record = found["message"], found["record"]
            kind = _KINDS.get(record.get("error"))
            return JaxcommError(message) if kind is None else kind(message, record)
    return JaxcommError(text.partition(": jaxcomm: ")[0])


@contextmanager
def translated() -> Iterator[None]:
    """Raises jaxcomm's error in place of the JAX error that wraps it; leaves all other errors alone.

    Steps run asynchronously, so wait for the results inside the `with` statement: `jax.block_until_ready(step(...))`.

    Raises:
      JaxcommError: the error that `from_jax` finds, with JAX's error as its cause.
    """
    try:
        yield
    except Exception as error:
        if (ours := from_jax(error)) is None:
            raise
        raise ours from error


def load_extra(module: str, use: str) -> Any:
    """Imports a module of an optional package.

    Args:
      module: the module's full name.
      use: the part of jaxcomm that needs the module, for the error text.

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
    """Checks that packages are installed, without importing them.

    Raises:
      JaxcommError: a package is not installed.
    """
    for package in packages:
        if not is_installed(package):
            raise JaxcommError(missing_extra(package, use))


def missing_extra(package: str, use: str) -> str:
    """The error text for a missing package that `use` needs, with the cure."""
    wanted = f"'jaxcomm[{_EXTRAS[package]}]'" if package in _EXTRAS else package
    return f"{use} needs the package {package}.\n  Cure: pip install {wanted}"


def is_installed(package: str) -> bool:
    """Whether a package can be imported; does not import it."""
    return importlib.util.find_spec(package) is not None
