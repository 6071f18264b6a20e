"""Modules of jaxcomm loaded anew for each start of a simulated process, over other collaborators.

A module that is loaded anew has globals of its own. Its imports find the given stand-ins first, then other modules that
are loaded anew, then the modules of this Python process.
"""

from __future__ import annotations

import builtins
import functools
import importlib
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any


class Overlay:
    """The attributes of an object, some of them replaced."""

    def __init__(self, below: object, **own: object) -> None:
        self.__dict__.update(own)
        self._below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class Modules:
    """The modules of one start of a process, by their full names."""

    def __init__(self, stand_ins: Mapping[str, object], anew: Collection[str], **own_builtins: object) -> None:
        self._loaded: dict[str, Any] = dict(stand_ins)
        self._anew = anew
        self._builtins = {**vars(builtins), **own_builtins, "__import__": self._import, "__build_class__": _build_class}

    def __getitem__(self, name: str) -> Any:
        if (found := self._loaded.get(name)) is None:
            if name not in self._anew:
                return importlib.import_module(name)
            found = self._loaded[name] = ModuleType(name)
            found.__dict__["__builtins__"] = self._builtins
            exec(_code(name), found.__dict__)
        return found

    def rebound(self, function: Any, module: ModuleType) -> Callable[..., Any]:
        """A function whose globals are those of a module."""
        return FunctionType(function.__code__, module.__dict__, None, function.__defaults__)

    def _import(
        self, name: str, globals: object = None, locals: object = None, fromlist: Any = (), level: int = 0
    ) -> object:
        if not fromlist:
            top = name.partition(".")[0]
            return self[top] if top in self._loaded else importlib.import_module(top)
        found = SimpleNamespace()
        for each in fromlist:
            full = f"{name}.{each}"
            is_module = full in self._loaded or full in self._anew
            setattr(found, each, self[full] if is_module else _attribute(self[name], full, each))
        return found


def _attribute(module: object, full: str, name: str) -> object:
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(full)


@functools.cache
def _code(name: str) -> CodeType:
    code: CodeType = importlib.import_module(name).__loader__.get_code(name)  # type: ignore[union-attr]
    return code


_classes: dict[CodeType, type] = {}


def _build_class(body: Any, name: str, *bases: Any, **keywords: Any) -> Any:
    """Builds a class; those without functions, which use no globals of their module, only once."""
    if any(isinstance(each, CodeType) for each in body.__code__.co_consts):
        return builtins.__build_class__(body, name, *bases, **keywords)
    if body.__code__ not in _classes:
        _classes[body.__code__] = builtins.__build_class__(body, name, *bases, **keywords)
    return _classes[body.__code__]
