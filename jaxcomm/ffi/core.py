"""A shared object of jaxcomm's: loading it, calling its C functions, registering its custom calls with XLA.

Its C functions end as cc/base/c_function.h says: each returns 0, or another number and the text of its error, for which
its last two arguments are the buffer.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jaxcomm import errors
from jaxcomm.errors import JaxcommError

ArgumentTypes = tuple[Any, ...]

# The last arguments of a function that returns a text: buffer, size, length of the whole text.
TEXT: Final[ArgumentTypes] = (ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

_ERROR: Final[ArgumentTypes] = (ctypes.c_char_p, ctypes.c_int64)
_ERROR_BYTES: Final = 4096
_TEXT_BYTES: Final = 1 << 16


class Core:
    """A shared object, which its first use loads.

        core = Core("C++ core", path, {"set_deadline": (ctypes.c_double,)}, cure="install the package")
        core.call("set_deadline", 60.0)  # jaxcomm_set_deadline

    Attributes:
      path: of its file.
    """

    def __init__(self, name: str, path: Path, functions: Mapping[str, ArgumentTypes], *, cure: str) -> None:
        """Loads nothing yet.

        Args:
          name: for messages.
          path: of its file.
          functions: by name, which "jaxcomm_" precedes in the file, the types of the arguments before the error's.
          cure: the cure where it cannot be loaded.
        """
        self.path = path
        self._name = name
        self._functions = functions
        self._cure = cure

    def call(self, function: str, *arguments: Any, raises: type[JaxcommError] = JaxcommError) -> None:
        """Calls a C function.

        Raises:
          JaxcommError: it cannot be loaded.
          JaxcommError, or `raises`: the function's error.
        """
        if (error := self.failure(function, *arguments)) is not None:
            raise raises(error)

    def failure(self, function: str, *arguments: Any) -> str | None:
        """Calls a C function and returns the text of its error, or None if it has succeeded.

        Raises:
          JaxcommError: it cannot be loaded.
        """
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        plain = (argument.encode() if isinstance(argument, str) else argument for argument in arguments)
        failed: int = getattr(self._library, f"jaxcomm_{function}")(*plain, error, len(error))
        return error.value.decode(errors="replace") if failed else None

    def text(self, function: str, *arguments: Any) -> str:
        """Calls a C function that returns a text.

        Raises:
          JaxcommError: it cannot be loaded, or the function's error.
        """
        length = ctypes.c_int64(_TEXT_BYTES)
        while True:
            out = ctypes.create_string_buffer(length.value + (length.value >> 2) + 1)
            self.call(function, *arguments, out, len(out), ctypes.byref(length))
            if length.value < len(out):
                return out.value.decode(errors="replace")

    def register(self, target: str, handler: str, platform: str, stages: Sequence[str] = ()) -> None:
        """Registers a custom call with XLA.

        Args:
          target: the custom call's name.
          handler: its handler's name, which "Jaxcomm" precedes in the file, and where there are stages each of these
            follows, beginning with a capital letter.
          platform: "cpu" or "CUDA".
          stages: of "instantiate", "initialize" and "execute"; none if there is one handler for all.
        """
        import jax

        def capsule(stage: str) -> Any:
            return jax.ffi.pycapsule(getattr(self._library, f"Jaxcomm{handler}{stage.capitalize()}"))

        calls = {stage: capsule(stage) for stage in stages} or capsule("")
        jax.ffi.register_ffi_target(target, calls, platform=platform)

    @functools.cached_property
    def _library(self) -> ctypes.CDLL:
        try:
            library = ctypes.CDLL(str(self.path))
            for name, types in self._functions.items():
                function = getattr(library, f"jaxcomm_{name}")
                function.restype = ctypes.c_int
                function.argtypes = (*types, *_ERROR)
        except (OSError, AttributeError) as error:
            raise JaxcommError(f"jaxcomm's {self._name} cannot be loaded: {error}.\n  Cure: {self._cure}.") from error
        if "failure" in self._functions:
            errors.add_lookup(self._find_failure)
        return library

    def _find_failure(self, text: str) -> dict[str, Any] | None:
        found = self.text("failure", text.encode(errors="replace"))
        try:
            return json.loads(found) if found else None
        except ValueError:  # another process may have sent any bytes
            return None
