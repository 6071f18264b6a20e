"""The two environment variables that make jaxlib load jaxcomm's library, if they are set before jaxlib is imported.

Every Python process of an environment may run this module at its start, so this module imports only jaxcomm and the
standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Final

from jaxcomm.backend import gloo_replacement
from jaxcomm.environment import EVERY_COLLECTIVE
from jaxcomm.environment import is_on as is_set
from jaxcomm.errors import JaxcommError

# Number of threads in XLA's pool if a process has several devices. Each execution in flight may block a thread in a
# collective.
THREADS: Final = 64
LIBRARY: Final = Path(__file__).parent / "libjaxcomm_backend.so"
_IMPLEMENTATION: Final = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_MPI: Final = "MPITRAMPOLINE_LIB"
_JAXLIB: Final = ((0, 10, 2), (0, 13))  # the oldest tested version, and the first version that was not tested


def use() -> None:
    """Makes jaxcomm run all of JAX's collectives between CPU processes, in unchanged programs.

    Call it in all processes of the job before the first use of JAX's devices. The call may precede or follow
    `jax.distributed.initialize()`. If jaxcomm cannot run the collectives, a line on stderr gives the reason, and JAX
    keeps its own collectives.
    """
    if "jaxlib" not in sys.modules:
        _turn_on_here()
    elif reason := why_not(os.environ) or _why_not_now():
        _say(reason)


def use_if_asked() -> None:
    """Turns jaxcomm's collectives on if the environment asks for them. The package's .pth file calls this.

    An invalid value only prints a line on stderr, because an error would end every Python program of the environment.
    """
    try:
        is_asked = is_set(EVERY_COLLECTIVE)
    except JaxcommError as error:
        _say(str(error))
        return
    if is_asked and "jaxlib" not in sys.modules:
        _turn_on_here()


def turn_on(environment: MutableMapping[str, str]) -> bool:
    """Sets the variables that make jaxlib load the library. Returns whether jaxlib can load the library."""
    if reason := why_not(environment):
        _say(reason)
        return False
    environment.update(variables())
    return True


def variables() -> dict[str, str]:
    """The variables that make jaxlib load the library."""
    return {_IMPLEMENTATION: "mpi", _MPI: str(LIBRARY)}


def implementation() -> tuple[str, str]:
    """The library that runs collectives between CPU processes, and the reason if jaxcomm does not run them.

    Returns:
      "jaxcomm" and "", or JAX's name of another library and the reason, in words for the user.
    """
    if is_on():
        return "jaxcomm", ""
    if reason := why_not(os.environ):
        pass
    elif not is_set(EVERY_COLLECTIVE):
        reason = f"{EVERY_COLLECTIVE} is not on"
    else:
        reason = f"{EVERY_COLLECTIVE} is set, but the package's jaxcomm.pth did not run: install jaxcomm by pip"
    return os.environ.get(_IMPLEMENTATION, "gloo"), reason


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the variables make jaxlib load the library."""
    return environment.get(_IMPLEMENTATION) == "mpi" and environment.get(_MPI) == str(LIBRARY)


def why_not(environment: Mapping[str, str]) -> str:
    """The reason why jaxlib cannot load the library, in words for the user; "" if jaxlib can load it."""
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
    """Makes the already loaded jaxlib load the library. Returns "" on success, or the reason of the failure."""
    from jaxcomm.backend import loaded_jaxlib  # imports JAX

    try:
        loaded_jaxlib.load(variables())
    except (LookupError, OSError) as error:
        return str(error.args[0]) if isinstance(error, LookupError) else str(error)
    gloo_replacement.replace()
    return ""


def _turn_on_here() -> None:
    if turn_on(os.environ):
        gloo_replacement.replace()


def _say(reason: str) -> None:
    print(f"jaxcomm: JAX keeps its own collectives between CPU processes: {reason.removesuffix('.')}.", file=sys.stderr)
