"""Environment variables that are on or off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomm
from jaxcomm import environment
from jaxcomm.errors import JaxcommError

NAME = "JAXCOMM_EVERY_COLLECTIVE"


@pytest.mark.parametrize(
    ("value", "on"),
    [
        *[(value, True) for value in ("1", "true", "True", "YES", "on", " on ")],
        *[(value, False) for value in ("0", "false", "FALSE", "no", "Off", "")],
    ],
)
def test_a_word_says_on_or_off(value: str, on: bool) -> None:
    assert environment.is_on(NAME, default=not on, environment={NAME: value}) == on


@pytest.mark.parametrize("default", [False, True])
def test_unset_variables_have_their_default(default: bool) -> None:
    assert environment.is_on(NAME, default=default, environment={}) == default


@pytest.mark.parametrize("value", ["2", "-1", "y", "none", "1,0", "x" * 1000])
def test_any_other_word_is_an_error(value: str) -> None:
    with pytest.raises(JaxcommError, match=NAME) as found:
        environment.is_on(NAME, environment={NAME: value})
    assert "Cure: " in str(found.value) and len(str(found.value)) < 300


def test_an_invalid_trial_is_one_error() -> None:
    script = "import jaxcomm\ntry: jaxcomm.psum\nexcept jaxcomm.JaxcommError as error: print(error)"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "JAXCOMM_TRIAL": "maybe"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.startswith("JAXCOMM_TRIAL is 'maybe'; it must be"), found.stderr


def test_no_module_reads_words_for_on_itself() -> None:
    constants = {name for name, value in vars(environment).items() if str(value).startswith("JAXCOMM_")}
    switches = {"ARRIVALS", "EVERY_COLLECTIVE", "EXIT_AT_DEADLINE", "TRIAL", "GPU_SMALL"}
    assert switches <= constants
    names = "|".join(switches)
    for path in Path(jaxcomm.__file__).parent.rglob("*.py"):
        assert not re.search(rf"environ(ment)?(\.get\(|\[)({names})\b", path.read_text()), path
