"""Exported files: they are of the format, compute the sum in every order, and keep its limits."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from documents import PLAN, sealed
from exported import Mscclpp, MscclXml, WrongError, executed
from schedule_cases import CASES

from jaxcomm import plan, schedules
from jaxcomm.cli import main
from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters import FORMATS, export
from jaxcomm.plan.exporters.msccl_xml import msccl_xml
from jaxcomm.plan.exporters.mscclpp import mscclpp
from jaxcomm.schedules import Op, Schedule

Capture = pytest.CaptureFixture[str]
RANKS = [2, 3, 4, 5, 6, 7, 8]
LARGE = ["ring", "halving_doubling", "direct", "straggler, 5 chunks", "transfers"]


def solved(ranks: int) -> Schedule:
    """A schedule given transfer by transfer: every owner joins with the late rank, then tells the next ones in turn."""
    late, others = ranks - 1, range(ranks - 1)
    moves = [(c, late, c, c) for c in others]
    moves += [(c + hop, c, (c + hop) % (ranks - 1), c) for c in others for hop in range(1, ranks - 1)]
    return schedules.transfers(ranks, late, tuple(others), tuple(number for move in moves for number in move))


ALL: dict[str, Callable[[int], Schedule]] = {**CASES, "transfers": solved}


def mscclpp_text(schedule: Schedule) -> str:
    return mscclpp(schedule, "test", 0, None).text


def xml_text(schedule: Schedule) -> str:
    return msccl_xml(schedule, "test", 0, None).text


def number(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def array(items: Any, low: int = 0, high: int = 10**6) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


MEMORY = {"const": "memory"}
LOCAL = record(type={"enum": ["i", "s"]}, index=number(0, 2**20), size={"const": 1})
REMOTE = record(buffer_id=number(0, 15), index=number(0, 2**20), size={"const": 1})
TOKEN = {"channel_ids": {**array(number(0, 15), 1, 8), "uniqueItems": True}, "channel_type": MEMORY}
OPERATION = {
    "oneOf": [
        record(name={"const": "nop"}),
        record(name={"enum": ["signal", "wait"]}, **TOKEN),
        record(name={"const": "put"}, src_buff=array(LOCAL, 1, 8), dst_buff=array(REMOTE, 1, 8), channel_type=MEMORY),
        record(
            name={"const": "re"}, src_buff=array(LOCAL, 2, 9), dst_buff=array(LOCAL, 1, 1), reduce_op={"const": "sum"}
        ),
        record(name={"const": "copy"}, src_buff=array(LOCAL, 1, 1), dst_buff=array(LOCAL, 1, 1)),
    ]
}
MSCCLPP_SCHEMA = record(
    name={"type": "string"},
    collective={"const": "allreduce"},
    protocol={"const": "Simple"},
    inplace={"const": True},
    reuse_resources={"const": False},
    gpus=array(
        record(
            id=number(0, 4096),
            input_chunks=number(1, 65536),
            output_chunks=number(1, 65536),
            scratch_chunks=number(0, 2**20),
            threadblocks=array(
                record(
                    id=number(0, 107),
                    ops=array(OPERATION, 1, 64),
                    channels=array(record(channel_type=MEMORY, channel_ids=array(number(0, 2**20), 1, 16)), 1, 1),
                    remote_buffer_refs=array(
                        record(access_channel_type=MEMORY, remote_buffer_ids=array(number(0, 4096), 1, 16)), 0, 1
                    ),
                ),
                1,
                108,
            ),
            channels=array(record(channel_type=MEMORY, connected_to=array(number(0, 4096), 1)), 1, 1),
            remote_buffers=array(
                record(rank=number(0, 4096), type={"const": "s"}, access_channel_types={"const": ["memory"]})
            ),
            semaphores={"const": []},
        ),
        2,
    ),
    num_threads_per_block=number(32, 1024),
    use_double_scratch_buffer={"const": False},
    buffer_alignment={"const": 16},
    min_message_size=number(16, 2**31 - 1),
    max_message_size=number(16, 2**32 - 1),
)

ATTRIBUTES = {
    "algo": "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes",
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}
WORDS = {"name": r"[\w-]+", "proto": "Simple", "coll": "allreduce", "type": "s|r|rrc|nop", "srcbuf": "i", "dstbuf": "i"}


def check_mscclpp(text: str) -> dict[str, Any]:
    """What MSCCL++'s parser and executor expect of a plan."""
    document = json.loads(text)
    jsonschema.validate(document, MSCCLPP_SCHEMA)
    for rank, gpu in enumerate(document["gpus"]):
        assert gpu["id"] == rank
        assert [block["id"] for block in gpu["threadblocks"]] == list(range(len(gpu["threadblocks"])))
        ids = [i for block in gpu["threadblocks"] for i in block["channels"][0]["channel_ids"]]
        assert ids == list(range(len(gpu["channels"][0]["connected_to"]))), "a channel belongs to one block"
        for block in gpu["threadblocks"]:
            channels = len(block["channels"][0]["channel_ids"])
            assert all(i < channels for op in block["ops"] for i in op.get("channel_ids", []))
    assert document["min_message_size"] % (16 * document["gpus"][0]["input_chunks"]) == 0
    return document


def check_xml(text: str) -> ElementTree.Element:
    """What MSCCL's parser expects of an algorithm."""
    root = ElementTree.fromstring(text)
    assert text.startswith("<algo "), "the parser reads sizes from the first element"
    for element in root.iter():
        assert list(element.attrib) == ATTRIBUTES[element.tag].split()
        for name, value in element.attrib.items():
            assert re.fullmatch(WORDS.get(name, r"-1|\d+"), value), (element.tag, name, value)
    channels, gpus = int(root.attrib["nchannels"]), root.findall("gpu")
    assert len(gpus) == int(root.attrib["ngpus"]) and 1 <= channels <= 32
    for rank, gpu in enumerate(gpus):
        assert int(gpu.attrib["id"]) == rank
        assert [int(tb.attrib["id"]) for tb in gpu] == list(range(len(gpu))) and len(gpu) <= 108
        assert 1 + len(gpus) + sum(1 + len(tb) for tb in gpu) <= 4096
        needed = set()
        for tb in gpu:
            assert int(tb.attrib["chan"]) < channels and len(tb) <= 64
            assert (int(tb.attrib["send"]) < 0) != (int(tb.attrib["recv"]) < 0)
            for place, step in enumerate(tb):
                assert int(step.attrib["s"]) == place
                block, other = int(step.attrib["depid"]), int(step.attrib["deps"])
                if block >= 0:
                    assert block != int(tb.attrib["id"])
                    assert gpu[block][other].attrib["type"] != "nop"
                    needed.add((block, other))
                if place and tb[place - 1].attrib["type"] == "nop":
                    assert block >= 0, "a chain of dependences ends at a step that has one itself"
        for tb in gpu:
            for place, step in enumerate(tb):
                assert (step.attrib["hasdep"] == "1") == ((int(tb.attrib["id"]), place) in needed)
    ends = [(gpu.attrib["id"], tb.attrib["send"], tb.attrib["chan"]) for gpu in gpus for tb in gpu]
    taken = [(tb.attrib["recv"], gpu.attrib["id"], tb.attrib["chan"]) for gpu in gpus for tb in gpu]
    sends, receives = [e for e in ends if e[1] != "-1"], [e for e in taken if e[0] != "-1"]
    assert len({*sends}) == len(sends) and sorted(sends) == sorted(receives), "a connection has one block at each end"
    return root


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, n) for name in ALL for n in RANKS), *((name, 16) for name in LARGE)]
)
def test_exports_are_of_their_format_and_add_up_in_every_order(name: str, ranks: int) -> None:
    schedule = ALL[name](ranks)
    text = mscclpp_text(schedule)
    check_mscclpp(text)
    executed(Mscclpp, text, seed=ranks, calls=2 if ranks < 5 else 1)
    assert text == mscclpp_text(schedule)
    text = xml_text(schedule)
    check_xml(text)
    executed(MscclXml, text, seed=ranks)
    assert text == xml_text(schedule)


@pytest.mark.parametrize("machine", [Mscclpp, MscclXml])
def test_exports_move_what_the_schedule_moves(machine: Any) -> None:
    schedule = schedules.straggler(6, 2, 13)
    rows = len(schedule.table()) + len(schedule.precondition.table())
    if machine is Mscclpp:
        document = json.loads(mscclpp_text(schedule))
        ops = [op for gpu in document["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
        assert sum(len(op["dst_buff"]) for op in ops if op["name"] == "put") == rows
        assert sum(gpu["scratch_chunks"] for gpu in document["gpus"]) == rows
    else:
        kinds = [step.attrib["type"] for step in check_xml(xml_text(schedule)).iter("step")]
        reduces = sum(int((s.table()[:, 4] == Op.REDUCE).sum()) for s in (schedule, schedule.precondition))
        assert (kinds.count("s"), kinds.count("rrc"), kinds.count("r")) == (rows, reduces, rows - reduces)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(("ring", "halving", "direct"))])
def test_the_others_do_their_part_while_the_late_rank_is_away(name: str, ranks: int) -> None:
    schedule = ALL[name](ranks)
    covered = range(int(schedule.precondition.table()[:, 3].max()) + 1 if ranks > 2 else 0)
    for machine, text in ((Mscclpp, mscclpp_text(schedule)), (MscclXml, xml_text(schedule))):
        made = machine(text)
        assert not made.run(late=schedule.late), "the others need the late rank"
        made.memory.check_sums(missing=schedule.late, chunks=covered)


def without(items: list[Any], place: int) -> list[Any]:
    return items[:place] + items[place + 1 :]


@pytest.mark.parametrize("name", ["halving_doubling", "direct", "straggler, 5 chunks", "transfers"])
def test_every_signal_wait_and_meeting_of_threads_is_needed(name: str) -> None:
    document = json.loads(mscclpp_text(ALL[name](4)))
    tried = 0
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            ops = block["ops"]
            for place, op in enumerate(ops):
                meets = op["name"] == "nop" and (ops[place - 1]["name"] == "wait" or ops[place + 1]["name"] == "signal")
                if op["name"] in ("signal", "wait") or meets:
                    block["ops"] = without(ops, place)
                    with pytest.raises((WrongError, KeyError)):
                        executed(Mscclpp, json.dumps(document), seed=place, calls=2)
                    tried += 1
            block["ops"] = ops
    assert tried > 50


@pytest.mark.parametrize("name", ["halving_doubling", "direct", "straggler, 5 chunks", "transfers"])
def test_dependences_are_needed(name: str) -> None:
    text = xml_text(ALL[name](4))
    root = ElementTree.fromstring(text)
    caught = {"s": 0, "r": 0, "rrc": 0, "nop": 0}
    missed = dict(caught)
    for step in root.iter("step"):
        block = step.attrib["depid"]
        if block != "-1":
            step.attrib["depid"] = "-1"
            try:
                executed(MscclXml, ElementTree.tostring(root, encoding="unicode"))
            except WrongError:
                caught[step.attrib["type"]] += 1
            else:
                missed[step.attrib["type"]] += 1
            step.attrib["depid"] = block
    assert caught["s"] and not missed["s"], "what is passed on must have arrived"
    assert missed["r"] + caught["r"] == missed["r"], "a final chunk can only come when one's own part was sent"
    assert caught["rrc"] or name == "transfers"


def star(ranks: int) -> Schedule:
    """One rank adds up everything, and tells everybody."""
    rows = [[0, rank, 0, 0, Op.REDUCE] for rank in range(1, ranks)] + [
        [1, 0, rank, 0, Op.COPY] for rank in range(1, ranks)
    ]
    return Schedule.from_table(rows, kind="star", ranks=ranks, num_chunks=1, ports=ranks)


BEYOND: dict[str, tuple[Callable[..., Any], Schedule, str]] = {
    "operations": (mscclpp, schedules.straggler(2, 1, 1000), "operations of a thread block is .* allows at most 64"),
    "channels": (mscclpp, schedules.direct(18), "channels of a thread block is 17; MSCCL.. allows at most 16"),
    "peers": (msccl_xml, star(34), "send peers of a channel is 33; MSCCL allows at most 32"),
    "blocks": (msccl_xml, schedules.straggler(8, 3, 1000), "thread blocks of a GPU .* runs at once at most 108"),
    "elements": (msccl_xml, schedules.straggler(2, 1, 2020), "XML elements for a GPU is .* keeps at most 4096"),
    "chunks": (msccl_xml, schedules.straggler(3, 1, 40000), "number of chunks is 40000; MSCCL allows at most 32767"),
}


@pytest.mark.parametrize(("write", "schedule", "message"), BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_a_limit_is_refused(write: Callable[..., Any], schedule: Schedule, message: str) -> None:
    with pytest.raises(PlanError, match=rf"(?s){message}\.\n  Cure: \w"):
        write(schedule, "test", 0, None)


def test_chunks_are_dealt_out_until_the_limits_are_kept() -> None:
    for chunks, channels in ((40, 1), (64, 1), (65, 2), (200, 4)):
        assert check_xml(xml_text(schedules.straggler(2, 1, chunks))).attrib["nchannels"] == str(channels)
    for chunks, blocks in ((1, 1), (9, 9), (100, 32), (270, 34)):
        [gpu, _] = check_mscclpp(mscclpp_text(schedules.straggler(2, 1, chunks)))["gpus"]
        assert len(gpu["threadblocks"]) == blocks


@pytest.mark.parametrize(
    ("low", "high", "sizes"),
    [
        (0, None, (128, 2454267008)),
        (1, 1000, (128, 896)),
        (129, 4096, (256, 4096)),
        (2**30, 2**40, (2**30, 2454267008)),
        (1, 127, None),
        (129, 255, None),
        (2**31, None, None),
    ],
)
def test_mscclpp_gets_the_sizes_that_it_takes(low: int, high: int | None, sizes: tuple[int, int] | None) -> None:
    if sizes is None:
        with pytest.raises(PlanError, match=r"a multiple of 8 chunks × 16 bytes = 128, from 128 to 2454267008 bytes"):
            mscclpp(schedules.ring(8), "test", low, high)
        return
    document = json.loads(mscclpp(schedules.ring(8), "test", low, high).text)
    assert (document["min_message_size"], document["max_message_size"]) == sizes
    scratch = max(gpu["scratch_chunks"] for gpu in document["gpus"])
    assert sizes[1] // 8 * scratch < 2**32, "every offset fits in 32 bits"


def test_msccl_gets_the_range() -> None:
    for high, said in ((None, "0"), (4096, "4096")):
        root = check_xml(msccl_xml(schedules.ring(4), "test", 1024, high).text)
        assert (root.attrib["minBytes"], root.attrib["maxBytes"]) == ("1024", said)
    with pytest.raises(PlanError, match="ends at 0, which MSCCL reads as no limit"):
        msccl_xml(schedules.ring(4), "test", 0, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(sealed(PLAN)))
    return path


def exported(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["export", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


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


def test_what_a_format_cannot_hold_is_left_out_and_said_so(file: Path, capsys: Capture) -> None:
    out = file.parent / "out"
    code, found = exported(capsys, str(file), "--to", "mscclpp", "--out", str(out))
    [missing] = found["left_out"]
    assert code == 0 and len(found["files"]) == 5 == len([*out.iterdir()])
    assert (missing["min_bytes"], missing["schedule"]) == (65536, "straggler")
    assert "collectives[3].schedule (straggler, 11 chunks): no size from 65536 to 65536 bytes" in missing["reason"]
    for row in found["files"]:
        executed(Mscclpp, Path(row["file"]).read_text())
    names = {json.loads(Path(row["file"]).read_text())["name"] for row in found["files"]}
    assert len(names) == 5, "the executor tells plans apart by their names"
    assert (found["files"][0]["min_bytes"], found["files"][0]["max_bytes"]) == (96, 480), "what the file takes"
    assert exported(capsys, str(file), "--to", "mscclpp", "--bytes", "64KiB")[0] == 1, "nothing is left"
    assert main(["export", str(file), "--to", "mscclpp", "--out", str(out)]) == 0
    assert "left out  64 KiB to 64 KiB: collectives[3]" in capsys.readouterr().out


def test_one_range_goes_to_one_file(file: Path, capsys: Capture) -> None:
    out = file.parent / "one.json"
    words = [str(file), "--to", "mscclpp", "--bytes", "1MiB", "--out", str(out)]
    code, found = exported(capsys, *words, "--dry-run")
    assert code == 0 and not out.exists() and found["files"][0]["file"] == str(out)
    assert exported(capsys, *words)[0] == 0
    document = check_mscclpp(out.read_text())
    assert document["min_message_size"] >= 65537 and document["max_message_size"] <= 10**9
    first = out.read_bytes()
    assert exported(capsys, *words)[0] == 0 and out.read_bytes() == first
    for wrong in (["--to", "msccl-xml", "--bytes", "1MiB"], ["--to", "mscclpp"]):
        assert main(["export", str(file), *wrong, "--out", str(out)]) == 1
        assert "one.json, a file; --to" in capsys.readouterr().err


def test_a_moved_straggler_moves_in_the_export(file: Path) -> None:
    moved = plan.load(file, roles={"straggler": 0})
    text = export(moved, 4, FORMATS["mscclpp"]).text
    assert text != export(plan.load(file), 4, FORMATS["mscclpp"]).text
    assert not Mscclpp(text).run(late=0)
    executed(Mscclpp, text, seed=random.Random(0).randrange(99))
