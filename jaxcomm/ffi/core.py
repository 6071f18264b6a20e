"""Loads a shared object of jaxcomm, calls its C functions, and registers its custom calls with XLA.

The C functions follow cc/base/c_function.h. A function returns 0 on success. On failure it returns another number and
writes the error's text to its last argument, a buffer.
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


class Text(ctypes.Structure):
    """A buffer for a text, and the length of the whole text."""

    _fields_ = (("bytes", ctypes.c_void_p), ("capacity", ctypes.c_int64), ("length", ctypes.c_int64))

    def __init__(self, capacity: int) -> None:
        """Makes an empty buffer of `capacity` bytes."""
        self._buffer = ctypes.create_string_buffer(capacity)
        super().__init__(ctypes.addressof(self._buffer), capacity, 0)

    def value(self) -> str:
        """The part of the text that fits into the buffer."""
        return self._buffer.value.decode(errors="replace")


TEXT: Final = ctypes.POINTER(Text)
_ERROR_BYTES: Final = 4096
_TEXT_BYTES: Final = 1 << 16


class Core:
    """A shared object that is loaded at its first use.

        core = Core("C++ core", path, {"set_deadline": (ctypes.c_double,)}, cure="install the package")
        core.call("set_deadline", 60.0)  # jaxcomm_set_deadline

    Attributes:
      path: the path of the shared object's file.
    """

    def __init__(self, name: str, path: Path, functions: Mapping[str, ArgumentTypes], *, cure: str) -> None:
        """Loads nothing yet.

        Args:
          name: the shared object's name in error texts.
          path: the path of the shared object's file.
          functions: for each C function, the types of all arguments except the last, which is the buffer for the error.
            The keys are the functions' names without the prefix "jaxcomm_".
          cure: the cure if the file cannot be loaded.
        """
        self.path = path
        self._name = name
        self._functions = functions
        self._cure = cure

    def call(self, function: str, *arguments: Any, raises: type[JaxcommError] = JaxcommError) -> None:
        """Calls a C function.

        Raises:
          JaxcommError: the shared object cannot be loaded.
          `raises`: the C function has failed.
        """
        if (error := self.failure(function, *arguments)) is not None:
            raise raises(error)

    def failure(self, function: str, *arguments: Any) -> str | None:
        """Calls a C function and returns the text of its error, or None if it has succeeded.

        Raises:
          JaxcommError: the shared object cannot be loaded.
        """
        error = Text(_ERROR_BYTES)
        plain = (argument.encode() if isinstance(argument, str) else argument for argument in arguments)
        failed: int = getattr(self._library, f"jaxcomm_{function}")(*plain, error)
        return error.value() if failed else None

    def text(self, function: str, *arguments: Any) -> str:
        """Calls a C function that returns a text.

        Raises:
          JaxcommError: the shared object cannot be loaded, or the C function has failed.
        """
        length = _TEXT_BYTES
        while True:
            out = Text(length + (length >> 2) + 1)
            self.call(function, *arguments, out)
            if (length := out.length) < out.capacity:
                return out.value()

    def register(self, target: str, handler: str, platform: str, stages: Sequence[str] = ()) -> None:
        """Registers a custom call with XLA.

        Args:
          target: the custom call's name.
          handler: the handler's name, without the prefix "Jaxcomm" and without the capitalized stage at the end.
          platform: "cpu" or "CUDA".
          stages: some of "instantiate", "initialize" and "execute"; empty if one handler serves all stages.
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
                function.argtypes = (*types, TEXT)
        except (OSError, AttributeError) as error:
            raise JaxcommError(f"jaxcomm's {self._name} cannot be loaded: {error}.\n  Cure: {self._cure}.") from error
        if "failure" in self._functions:
            errors.add_lookup(self._find_failure)
        return library

    def _find_failure(self, text: str) -> dict[str, Any] | None:
        found = self.text("failure", text.encode(errors="replace"))
        try:
            return json.loads(found) if found else None
        except ValueError:  # invalid JSON: the record may contain bytes that another process sent
            return None
