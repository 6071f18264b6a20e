"""`jaxcomm export`: one file per byte range, and the ranges that are left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import plan
from jaxcomm.cli import main
from jaxcomm.plan.exporters import FORMATS, export
from tests.cli import documents
from tests.plan.documents import PLAN, sealed
from tests.plan.export_formats import check_mscclpp, check_xml
from tests.plan.exported import Mscclpp, MscclXml, executed

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(sealed(PLAN)))
    return path


def exported(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["export", *words, "--json"])
    return code, documents.document(capsys.readouterr().out)


def test_a_plan_becomes_a_file_per_byte_range(file: Path, capsys: Capture) -> None:
    code, found = exported(capsys, str(file), "--to", "msccl-xml", "--out", str(file.parent / "new" / "out"))
    names = [Path(row["file"]).name for row in found["files"]]
    assert code == 0 and not found["left_out"]
    assert names[0] == "allreduce-0-511.xml" and names[-1] == "allreduce-1000000001-max.xml"
    loaded = plan.load(file)
    for index, row in enumerate(found["files"]):
        text = Path(row["file"]).read_text()
        assert text == export(loaded, index, FORMATS["msccl-xml"]).text
        assert check_xml(text).attrib["name"].startswith(f"jaxcomm-{loaded.hash[:12]}-{row['schedule']}-")
        executed(MscclXml, text)


def test_schedules_that_a_format_cannot_hold_are_left_out_by_name(file: Path, capsys: Capture) -> None:
    out = file.parent / "out"
    code, found = exported(capsys, str(file), "--to", "mscclpp", "--out", str(out))
    [missing] = found["left_out"]
    assert code == 0 and len(found["files"]) == 5 == len([*out.iterdir()])
    assert (missing["min_bytes"], missing["schedule"]) == (65536, "straggler")
    assert "collectives[3].schedule (straggler, 11 chunks): no size from 65536 to 65536 bytes" in missing["reason"]
    for row in found["files"]:
        executed(Mscclpp, Path(row["file"]).read_text())
    names = {json.loads(Path(row["file"]).read_text())["name"] for row in found["files"]}
    assert len(names) == 5, "the executor distinguishes plans by their names"
    assert (found["files"][0]["min_bytes"], found["files"][0]["max_bytes"]) == (96, 480), "what the file takes"
    assert exported(capsys, str(file), "--to", "mscclpp", "--size", "64KiB")[0] == 1, "nothing is left"
    assert main(["export", str(file), "--to", "mscclpp", "--out", str(out)]) == 0
    assert "left out  64 KiB to 64 KiB: collectives[3]" in capsys.readouterr().out


def test_one_range_goes_to_one_file(file: Path, capsys: Capture) -> None:
    out = file.parent / "one.json"
    words = [str(file), "--to", "mscclpp", "--size", "1MiB", "--out", str(out)]
    code, found = exported(capsys, *words, "--dry-run")
    assert code == 0 and not out.exists() and found["files"][0]["file"] == str(out)
    assert exported(capsys, *words)[0] == 0
    document = check_mscclpp(out.read_text())
    assert document["min_message_size"] >= 65537 and document["max_message_size"] <= 10**9
    first = out.read_bytes()
    assert exported(capsys, *words)[0] == 0 and out.read_bytes() == first
    for wrong in (["--to", "msccl-xml", "--size", "1MiB"], ["--to", "mscclpp"]):
        assert main(["export", str(file), *wrong, "--out", str(out)]) == 1
        assert "one.json, a file; --to" in capsys.readouterr().err


def test_a_moved_straggler_moves_in_the_export(file: Path) -> None:
    moved = plan.load(file, roles={"straggler": 0})
    text = export(moved, 4, FORMATS["mscclpp"]).text
    assert text != export(plan.load(file), 4, FORMATS["mscclpp"]).text
    assert not Mscclpp(text).run(late=[0])
    executed(Mscclpp, text, seed=random.Random(0).randrange(99))
