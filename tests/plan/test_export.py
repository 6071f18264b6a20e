"""Exported files: they are of the format, compute the sum in every order, and keep its limits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from jaxcomm import plan, schedules
from jaxcomm.cli import main
from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters import FORMATS, export
from jaxcomm.plan.exporters.msccl_xml import msccl_xml
from jaxcomm.plan.exporters.mscclpp import mscclpp
from jaxcomm.schedules import Op, Schedule
from tests.plan.documents import PLAN, sealed
from tests.plan.export_formats import check_mscclpp, check_xml
from tests.plan.exported import Mscclpp, MscclXml, WrongError, executed
from tests.schedules.schedule_cases import CASES

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


def one_block_per_chunk(schedule: Schedule) -> str:
    """The plan for sizes whose chunks are too small for more than one thread block."""
    return mscclpp(schedule, "test", 0, 32 * 1024 * schedule.num_chunks - 1).text


def xml_text(schedule: Schedule) -> str:
    return msccl_xml(schedule, "test", 0, None).text


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
        sent = [buffer for op in ops for buffer in op.get("dst_buff", []) if "buffer_id" in buffer]
        taken = [buffer for op in ops for buffer in op.get("src_buff", []) if buffer["type"] == "s"]
        [parts] = {op["tbg_info"]["tbg_size"] for op in ops if "src_buff" in op}
        assert parts == 2 and len(sent) == len(taken) == rows * parts
    else:
        kinds = [step.attrib["type"] for step in check_xml(xml_text(schedule)).iter("step")]
        reduces = sum(int((s.table()[:, 4] == Op.REDUCE).sum()) for s in (schedule, schedule.precondition))
        assert (kinds.count("s"), kinds.count("rrc"), kinds.count("r")) == (rows, reduces, rows - reduces)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(("ring", "halving", "direct"))])
def test_the_others_do_their_part_while_the_late_rank_is_away(name: str, ranks: int) -> None:
    schedule = ALL[name](ranks)
    for before, after in pairwise(schedule.phases):
        covered = range(int(before.table()[:, 3].max()) + 1 if len(before.table()) else 0)
        for machine, text in ((Mscclpp, one_block_per_chunk(schedule)), (MscclXml, xml_text(schedule))):
            made = machine(text)
            assert not made.run(late=after.late_ranks), "the others need the late ranks"
            if schedule.kind != "hierarchical":
                made.memory.check_sums(missing=after.late_ranks, chunks=covered)
                continue
            # Mates and other hosts have sums of their own, and what all need not wait for may have joined them.
            fresh = machine(text).memory.held
            for _, src, dst, chunk, _ in before.table().tolist():
                fresh[dst, "i", chunk] += fresh[src, "i", chunk]
            added = {(src, "i", chunk) for _, src, _, chunk, _ in before.table().tolist()}
            kept = {cell: value for cell, value in fresh.items() if cell not in added}
            assert all(made.memory.held[cell] & value == value for cell, value in kept.items())


def without(items: list[Any], place: int) -> list[Any]:
    return items[:place] + items[place + 1 :]


@pytest.mark.parametrize("name", ["halving_doubling", "direct", "straggler, 5 chunks", "transfers"])
def test_every_signal_wait_and_meeting_of_threads_is_needed(name: str) -> None:
    document = json.loads(one_block_per_chunk(ALL[name](4)))
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
    "operations": (mscclpp, schedules.straggler(2, 1, 1500), "operations of a thread block is .* allows at most 64"),
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


@pytest.mark.parametrize("ranks", [20, 34, 64])
def test_the_others_sum_goes_around_a_ring_where_owners_would_have_too_many_peers(ranks: int) -> None:
    """Beyond 16 peers for MSCCL++, 32 for MSCCL; a ring adds every chunk as often as straight sums do."""
    schedule = schedules.straggler(ranks, ranks - 1, 3)
    text = mscclpp_text(schedule)
    check_mscclpp(text)
    if ranks < 64:
        executed(Mscclpp, text, seed=ranks)
    document = json.loads(text)
    channels = [len(block["channels"][0]["channel_ids"]) for gpu in document["gpus"] for block in gpu["threadblocks"]]
    assert max(channels) <= 16
    text = xml_text(schedule)
    root = check_xml(text)
    executed(MscclXml, text, seed=ranks)
    rows = len(schedule.table()) + len(schedule.precondition.table())
    assert [step.attrib["type"] for step in root.iter("step")].count("s") == rows


def test_chunks_are_dealt_out_until_the_limits_are_kept() -> None:
    for chunks, channels in ((40, 1), (64, 1), (65, 2), (200, 4)):
        assert check_xml(xml_text(schedules.straggler(2, 1, chunks))).attrib["nchannels"] == str(channels)
    for chunks, blocks in ((1, 32), (9, 27), (270, 32), (400, 41)):
        [gpu, _] = check_mscclpp(mscclpp_text(schedules.straggler(2, 1, chunks)))["gpus"]
        assert len(gpu["threadblocks"]) == blocks


def scratch(schedule: Schedule) -> list[int]:
    return [gpu["scratch_chunks"] for gpu in json.loads(one_block_per_chunk(schedule))["gpus"]]


def test_scratch_is_reused_once_signals_prove_that_it_was_read() -> None:
    """A chunk that goes around twice finds the same place; what arrives from several at once has a place each."""
    assert max(scratch(schedules.ring(8))) == 8
    assert max(scratch(schedules.straggler(32, 31, 40))) <= 42
    assert set(scratch(schedules.direct(8))) == {14}


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "direct", "straggler, 5 chunks", "transfers"])
def test_a_place_that_is_reused_too_early_is_found(name: str) -> None:
    document = json.loads(one_block_per_chunk(ALL[name](6)))
    tried = 0
    for gpu in document["gpus"]:
        for place in range(1, gpu["scratch_chunks"]):
            moved = json.loads(json.dumps(document))
            for at in [b for b in buffers(moved, gpu["id"]) if b["index"] == place]:
                at["index"] = place - 1
            with pytest.raises(WrongError, match="race"):
                executed(Mscclpp, json.dumps(moved), seed=place)
            tried += 1
    assert tried >= 6


def buffers(document: dict[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    """Where a file names the scratch buffer of a GPU."""
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            there = [i for refs in block["remote_buffer_refs"] for i in refs["remote_buffer_ids"]]
            for op in block["ops"]:
                for at in (*op.get("src_buff", []), *op.get("dst_buff", [])):
                    remote = "buffer_id" in at and gpu["remote_buffers"][there[at["buffer_id"]]]["rank"] == rank
                    if remote or (gpu["id"] == rank and at.get("type") == "s"):
                        yield at


def test_thread_blocks_share_chunks_that_are_few_and_large() -> None:
    for chunk, parts in ((16, 1), (32 * 1024 - 16, 1), (32 * 1024, 2), (2**20, 4)):
        document = check_mscclpp(mscclpp(schedules.direct(8), "test", 0, 8 * chunk).text)
        for gpu in document["gpus"]:
            assert len(gpu["threadblocks"]) == 8 * parts
            shares = [op.get("tbg_info") for block in gpu["threadblocks"] for op in block["ops"] if "src_buff" in op]
            sizes = {share and share["tbg_size"] for share in shares}
            assert sizes == ({None} if parts == 1 else {parts})


@pytest.mark.parametrize(
    ("schedule", "low", "high", "sizes"),
    [
        (schedules.ring(8), 0, None, (128, 2**32 - 128)),
        (schedules.ring(8), 1, 1000, (128, 896)),
        (schedules.ring(8), 129, 4096, (256, 4096)),
        (schedules.ring(8), 2**30, 2**40, (2**30, 2**32 - 128)),
        (schedules.direct(8), 2**30, None, (2**30, 2454267008)),
    ],
)
def test_mscclpp_gets_the_sizes_that_it_takes(
    schedule: Schedule, low: int, high: int | None, sizes: tuple[int, int]
) -> None:
    document = json.loads(mscclpp(schedule, "test", low, high).text)
    assert (document["min_message_size"], document["max_message_size"]) == sizes
    places = max(8, *(gpu["scratch_chunks"] for gpu in document["gpus"]))
    assert sizes[1] // 8 * places < 2**32, "every offset fits in 32 bits"


@pytest.mark.parametrize(
    ("schedule", "low", "high", "message"),
    [
        (schedules.ring(8), 1, 127, "no size from 1 to 127 bytes is a multiple of 8 chunks × 16 bytes = 128"),
        (schedules.ring(8), 129, 255, "no size from 129 to 255 bytes is a multiple of 8 chunks × 16 bytes = 128"),
        (schedules.ring(8), 2**31, None, "smallest size in bytes is 2147483648; MSCCL.. allows at most 2147483647"),
        (schedules.straggler(8, 7, 1), 2**30, None, "largest offset .* size is 7516192768; .* at most 4294967295"),
    ],
)
def test_sizes_that_mscclpp_does_not_take_are_refused(
    schedule: Schedule, low: int, high: int | None, message: str
) -> None:
    with pytest.raises(PlanError, match=rf"(?s){message}.*\n  Cure: \w"):
        mscclpp(schedule, "test", low, high)


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
    assert not Mscclpp(text).run(late=[0])
    executed(Mscclpp, text, seed=random.Random(0).randrange(99))
