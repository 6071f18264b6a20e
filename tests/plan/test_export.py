"""Exported files: they follow their format, compute the sum in every order, and have no unneeded waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from jaxcomm import schedules
from jaxcomm.schedules import Op, Schedule
from tests.plan.export_cases import ALL, mscclpp_text, one_block_per_chunk, one_instance, xml_text
from tests.plan.export_formats import check_mscclpp, check_xml
from tests.plan.exported import Mscclpp, MscclXml, WrongError, executed
from tests.schedules.schedule_cases import ranks_of


@pytest.mark.parametrize("ranks", ranks_of([2, 3, 5, 8], slow=[4, 6, 7, 16]))
@pytest.mark.parametrize("name", ALL)
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
        moved = Counter[str]()
        for step in check_xml(xml_text(schedule)).iter("step"):
            moved[step.attrib["type"]] += int(step.attrib["cnt"])
        reduces = sum(int((s.table()[:, 4] == Op.REDUCE).sum()) for s in (schedule, schedule.precondition))
        assert moved == {"s": 4 * rows, "rrc": 4 * reduces, "r": 4 * (rows - reduces), "nop": 0}


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
            # The late host and other hosts hold separate sums, which may already contain parts that need not wait.
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
    text = one_instance(ALL[name](4))
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


def scratch(schedule: Schedule) -> list[int]:
    return [gpu["scratch_chunks"] for gpu in json.loads(one_block_per_chunk(schedule))["gpus"]]


def test_scratch_is_reused_once_signals_prove_that_it_was_read() -> None:
    """A chunk that goes around a ring twice reuses its place. Chunks from several ranks at once have a place each."""
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
    """Yields each reference to the scratch buffer of GPU `rank`."""
    for gpu in document["gpus"]:
        for block in gpu["threadblocks"]:
            there = [i for refs in block["remote_buffer_refs"] for i in refs["remote_buffer_ids"]]
            for op in block["ops"]:
                for at in (*op.get("src_buff", []), *op.get("dst_buff", [])):
                    remote = "buffer_id" in at and gpu["remote_buffers"][there[at["buffer_id"]]]["rank"] == rank
                    if remote or (gpu["id"] == rank and at.get("type") == "s"):
                        yield at
