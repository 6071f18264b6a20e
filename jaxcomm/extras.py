"""Packages that only some uses of jaxcomm need, with the extra that installs each."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from jaxcomm.errors import JaxcommError

_EXTRAS: Final = {
    "flax": "demo",
    "matplotlib": "plot",
    "optax": "train",
    "ortools": "planner",
    "scipy": "planner",
    "sklearn": "demo",
}


def load(module: str, use: str) -> Any:
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
        raise JaxcommError(missing(package, use)) from None


def require(use: str, *packages: str) -> None:
    """Checks that packages are installed; imports none.

    Raises:
      JaxcommError: as `load`.
    """
    for package in packages:
        if not is_installed(package):
            raise JaxcommError(missing(package, use))


def missing(package: str, use: str) -> str:
    """The message that `use` needs a package, with the cure."""
    wanted = f"'jaxcomm[{_EXTRAS[package]}]'" if package in _EXTRAS else package
    return f"{use} needs the package {package}.\n  Cure: pip install {wanted}"


def is_installed(package: str) -> bool:
    """Whether a package can be imported; does not import it."""
    return importlib.util.find_spec(package) is not None
