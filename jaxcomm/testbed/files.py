"""Reads and checks testbed files (TOML), and the plan from which a testbed's switch takes its thresholds."""

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
    """Returns the names of the testbeds that come with jaxcomm."""
    return sorted(file.name for file in _EXAMPLES.glob("*.toml"))


def load(path: str | os.PathLike[str]) -> Testbed:
    """Returns the testbed that a TOML file describes.

    Args:
      path: a file of at most 1 MiB, or the name of an example. A file of the same name replaces an example. If the file
        names a plan, the plan's path is relative to the file's folder.

    Raises:
      JaxcommError: the file or its plan cannot be read or is invalid. The error names the place.
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
    """Returns the testbed with the thresholds of the plan that its switch names, if any."""
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
