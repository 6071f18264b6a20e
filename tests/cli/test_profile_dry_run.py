"""`jaxcomm profile --dry-run` refuses the mistakes that a measurement refuses."""

from __future__ import annotations

import pytest

from jaxcomm.cli import main


@pytest.mark.parametrize("executor", ["core", "xla"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "1"], "devices is 1; at least 2 are needed"),
        (["--devices", "0"], "devices is 0; at least 2 are needed"),
        (["--steps", "0"], "steps is 0; at least 1 is needed"),
        (["--devices", "4", "--late", "rank=4,ms=2"], "late names rank 4; the ranks are 0 to 3"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_dry_run_refuses_what_a_measurement_refuses(
    executor: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--dry-run", "--executor", executor, *words]) == 1
    assert message in capsys.readouterr().err
