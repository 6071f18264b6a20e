"""Whether jaxlib loads jaxcomm's library for its collectives: by two variables, before jaxlib is imported.

No package is imported here but the standard library's: every Python process of an environment may run this when it
starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Final

from jaxcomm.environment import EVERY_COLLECTIVE

# Of XLA's pool, where a process has several devices: each execution in flight may block one in a collective.
THREADS: Final = 64
LIBRARY: Final = Path(__file__).parent / "libjaxcomm_backend.so"
_IMPLEMENTATION: Final = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_MPI: Final = "MPITRAMPOLINE_LIB"
_JAXLIB: Final = ((0, 10, 2), (0, 13))  # from, before


def use() -> None:
    """Has JAX's collectives between CPU processes carried by jaxcomm, all of them, in unchanged programs.

    To be called before JAX's first device, in all processes of the job; `jax.distributed.initialize()` may come before
    or after. Where it is not possible, a line on stderr says why, and JAX keeps its own collectives.
    """
    if "jaxlib" not in sys.modules:
        turn_on(os.environ)
    elif reason := why_not(os.environ) or _why_not_now():
        _say(reason)


def use_if_asked() -> None:
    """Does so where the environment asks for it. The package's .pth file runs it."""
    if os.environ.get(EVERY_COLLECTIVE, "0") not in ("", "0") and "jaxlib" not in sys.modules:
        turn_on(os.environ)


def turn_on(environment: MutableMapping[str, str]) -> bool:
    """Sets the variables by which jaxlib loads the library; whether it will."""
    if reason := why_not(environment):
        _say(reason)
        return False
    environment.update(variables())
    return True


def variables() -> dict[str, str]:
    """By which jaxlib loads the library."""
    return {_IMPLEMENTATION: "mpi", _MPI: str(LIBRARY)}


def implementation() -> tuple[str, str]:
    """The library that carries collectives between CPU processes, and why it is not jaxcomm's; "" if it is.

    Returns:
      "jaxcomm", or JAX's own name of another, and the reason in words for the user.
    """
    if is_on():
        return "jaxcomm", ""
    if reason := why_not(os.environ):
        pass
    elif os.environ.get(EVERY_COLLECTIVE, "0") in ("", "0"):
        reason = f"{EVERY_COLLECTIVE} is not set"
    else:
        reason = f"{EVERY_COLLECTIVE} is set, but the package's jaxcomm.pth did not run: install jaxcomm by pip"
    return os.environ.get(_IMPLEMENTATION, "gloo"), reason


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the variables say that jaxlib loads the library."""
    return environment.get(_IMPLEMENTATION) == "mpi" and environment.get(_MPI) == str(LIBRARY)


def why_not(environment: Mapping[str, str]) -> str:
    """Why jaxlib cannot load the library, in words for the user; "" if it can."""
    if not LIBRARY.exists():
        return f"{LIBRARY} is missing: install jaxcomm on Linux by pip"
    if environment.get(_MPI, str(LIBRARY)) != str(LIBRARY):
        return f"{_MPI} names another library, {environment[_MPI]}: unset it"
    if environment.get(_IMPLEMENTATION, "mpi") != "mpi":
        return f"{_IMPLEMENTATION} is {environment[_IMPLEMENTATION]}: unset it"
    try:
        version = metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return "jaxlib is not installed"
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not _JAXLIB[0] <= numbers < _JAXLIB[1]:
        return f"jaxlib {version} has not been tried; jaxcomm knows 0.10.2 to 0.12"
    return ""


def _why_not_now() -> str:
    """Has a jaxlib that is loaded already load the library; why it cannot, in words for the user."""
    from jaxcomm.backend import loaded_jaxlib  # which imports JAX

    try:
        loaded_jaxlib.load(variables())
    except (LookupError, OSError) as error:
        return str(error.args[0]) if isinstance(error, LookupError) else str(error)
    return ""


def _say(reason: str) -> None:
    print(f"jaxcomm: JAX keeps its own collectives between CPU processes: {reason}.", file=sys.stderr)
