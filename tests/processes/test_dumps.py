"""Each process of a job dumps the call that failed, and the dumps together name the rank that was late."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm.profile import dump_file
from jaxcomm.report.dumps.incident import incident
from tests.processes import jobs


@pytest.mark.slow
def test_every_process_dumps_the_failed_call(tmp_path: Path) -> None:
    found = jobs.run("tests.processes.dumps", processes=3, JAXCOMM_DEADLINE_S="1", JAXCOMM_DUMP=str(tmp_path / "dumps"))
    for process in found:
        assert process.status == 0, process.output
        assert process.reports["late"]["missing"] == [2]
    paths = sorted((tmp_path / "dumps").iterdir())
    assert [path.name for path in paths] == [f"process-{process}-0.json" for process in range(3)]
    together = incident([dump_file.load(str(path)) for path in paths])
    assert together.culprit is not None and together.culprit.ranks == (2,)
    assert [place.is_missing for place in together.places] == [False, False, True]
    assert [place.process for place in together.places] == [0, 1, 2]
    late = together.places[2].arrived_s
    assert late is not None and late > 1
    for dump in together.dumps:
        assert dump.failed is not None and dump.failed.number == 3
        assert [call.number for call in dump.calls] == [1, 2, 3]
        assert {device.process for device in dump.devices} >= {0, 1}
    assert len({dump.failed.id for dump in together.dumps if dump.failed}) == 1
