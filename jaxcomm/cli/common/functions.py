"""A user's function, named on the command line as `path/file.py:name` or `module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxcomm.errors import JaxcommError
from jaxcomm.files import mistake


def function(name: str) -> Callable[..., Any]:
    """Finds the function. Imports the file as `python path/file.py` would, or the module as `python -m module` would.

    Raises:
      JaxcommError: no such file, module or function.
    """
    home, colon, attribute = name.rpartition(":")
    if not (colon and home and attribute):
        raise JaxcommError(mistake(repr(name), "names no function", "write path/file.py:name, or module:name"))
    module = _file(home) if home.endswith(".py") else _module(home)
    found = getattr(module, attribute, None)
    if not callable(found):
        known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        problem = f"has no function {attribute!r}; it has: {', '.join(known) or 'none'}"
        raise JaxcommError(mistake(home, problem, "name one of them"))
    return found  # type: ignore[no-any-return]  # any callable will do


def _file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise JaxcommError(mistake(path, "there is no such file", "check the path"))
    name = str(Path(path).resolve())  # a path is not a module name, so no imported module is replaced
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(Path(name).parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # both exist for a .py file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up here
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise JaxcommError(
            mistake(name, f"there is no module {error.name!r}", "check the name, or install it")
        ) from None
