"""Testbed files: TOML, read with every check; also the plan whose thresholds a switch is to have."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

import pydantic

from jaxcomm import files, plan
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed.schema import Testbed

_MAX_BYTES: Final = 2**20
_EXAMPLES: Final = Path(__file__).parent / "examples"


def examples() -> list[str]:
    """The names of the testbeds that come with jaxcomm."""
    return sorted(file.name for file in _EXAMPLES.glob("*.toml"))


def load(path: str | os.PathLike[str]) -> Testbed:
    """The testbed that a TOML file describes.

    Args:
      path: the file, at most 1 MiB, or the name of an example where there is no such file. A plan's path in it counts
        from its folder.

    Raises:
      JaxcommError: the file, or a plan that it names, cannot be read, is not TOML, or holds a value that cannot be;
        with its place.
    """
    where = os.fspath(path)
    if where in examples() and not os.path.exists(where):
        where = str(_EXAMPLES / where)
    try:
        document = tomllib.loads(files.read(where, _MAX_BYTES, JaxcommError).decode())
    except (ValueError, RecursionError) as problem:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise JaxcommError(files.mistake(where, f"is not TOML: {problem}", "mend that line")) from None
    try:
        testbed = Testbed.model_validate(document)
    except pydantic.ValidationError as problem:
        raise JaxcommError(files.mistake(where, files.explain(problem, "a testbed"), "mend the file")) from None
    return _with_thresholds(testbed, Path(where))


def _with_thresholds(testbed: Testbed, file: Path) -> Testbed:
    """The testbed whose switch has the thresholds of the plan that it names."""
    if testbed.switch is None or testbed.switch.plan is None:
        return testbed
    drops = plan.load(file.parent / testbed.switch.plan).drops
    if drops is None or drops.buffer is None:
        problem = f'switch.plan is "{testbed.switch.plan}", which has no thresholds'
        raise JaxcommError(files.mistake(file, problem, "plan from a profile with tolerance.switch"))
    try:
        switch = testbed.switch.with_thresholds(drops.buffer, testbed.mtu)
    except ValueError as problem:
        raise JaxcommError(files.mistake(file, f"switch.{problem}", "plan for fewer queues")) from None
    return testbed.model_copy(update={"switch": switch})
