"""Limits of the formats: work is divided so that it keeps to them, and schedules beyond a limit are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.msccl_xml import msccl_xml
from jaxcomm.plan.exporters.mscclpp import mscclpp
from jaxcomm.schedules import Schedule
from tests.plan.export_cases import ALL, mscclpp_text, one_instance, small, spokes, star, xml_text
from tests.plan.export_formats import check_mscclpp, check_xml
from tests.plan.exported import Mscclpp, MscclXml, executed

BEYOND: dict[str, tuple[Callable[..., Any], Schedule, str]] = {
    "operations": (mscclpp, schedules.straggler(2, 1, 1500), "operations of a thread block is .* allows at most 64"),
    "channels": (mscclpp, schedules.direct(18), "channels of a thread block is 17; MSCCL.. allows at most 16"),
    "steps": (msccl_xml, schedules.straggler(2, 1, 2020), "steps of a thread block is .* allows at most 64"),
    "links": (msccl_xml, spokes([1] * 64 + [31 * 64]), "the number of channels is 33; MSCCL allows at most 32"),
    "blocks": (msccl_xml, star(110), "thread blocks of a GPU is 109; an A100 runs at once at most 108"),
    "elements": (msccl_xml, spokes([60] * 70), "XML elements for a GPU is .* keeps at most 4096"),
    "chunks": (msccl_xml, schedules.straggler(3, 1, 40000), "number of chunks is 40000; MSCCL allows at most 32767"),
}


@pytest.mark.parametrize(("write", "schedule", "message"), BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_a_limit_is_refused(write: Callable[..., Any], schedule: Schedule, message: str) -> None:
    with pytest.raises(PlanError, match=rf"(?s){message}\.\n  Cure: \w"):
        write(schedule, "test", 0, None)


@pytest.mark.parametrize("ranks", [20, 34, 64])
def test_the_others_sum_goes_around_a_ring_where_owners_would_have_too_many_peers(ranks: int) -> None:
    """MSCCL++ needs a ring above 16 peers, MSCCL has enough thread blocks. A ring has as many additions as a star."""
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
    sent = [step for step in root.iter("step") if step.attrib["type"] == "s"]
    rows = len(schedule.table()) + len(schedule.precondition.table())
    assert sum(int(step.attrib["cnt"]) for step in sent) * 3 == rows * int(root.attrib["nchunksperloop"])


def test_chunks_are_dealt_out_until_the_limits_are_kept() -> None:
    for chunks, channels in ((40, 1), (64, 1), (65, 2), (200, 4)):
        assert check_xml(one_instance(schedules.straggler(2, 1, chunks))).attrib["nchannels"] == str(channels)
    for chunks, blocks in ((1, 32), (9, 27), (270, 32), (400, 41)):
        [gpu, _] = check_mscclpp(mscclpp_text(schedules.straggler(2, 1, chunks)))["gpus"]
        assert len(gpu["threadblocks"]) == blocks


def test_only_links_that_need_it_have_several_channels() -> None:
    """Rank 0 has 70 steps to one peer, and one step to each of 20. It needs two channels only for the first peer."""
    root = check_xml(one_instance(spokes([1] * 20 + [70])))
    assert (len(root[0]), len(root[1]), len(root[21])) == (22, 1, 2)


def test_consecutive_chunks_go_in_one_step() -> None:
    root = check_xml(one_instance(schedules.halving_doubling(64)))
    assert {len(tb) for tb in root.iter("tb")} <= {2, 3, 4, 5, 6}
    counts = {int(step.attrib["cnt"]) for step in root.iter("step") if step.attrib["type"] != "nop"}
    assert counts == {1, 2, 4, 8, 16, 32}
    executed(MscclXml, ElementTree.tostring(root, encoding="unicode"))


@pytest.mark.slow
def test_a_thread_block_sends_and_receives_where_a_gpu_would_have_too_many() -> None:
    text = xml_text(schedules.straggler(56, 55, 55))
    root = check_xml(text)
    both = [tb for tb in root[55] if tb.attrib["send"] == tb.attrib["recv"]]
    assert len(both) == 55 == len(root[55])
    executed(MscclXml, text)


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "straggler, 5 chunks"])
def test_instances_do_the_same_on_their_parts_over_channels_of_their_own(name: str) -> None:
    schedule = ALL[name](4)
    one = check_xml(one_instance(schedule))
    parts = [check_xml(msccl_xml(schedule, "test", 0, small(schedule) * n).text) for n in (2, 4)]
    for number, root in zip((2, 4), parts, strict=True):
        for what in ("nchunksperloop", "nchannels"):
            assert int(root.attrib[what]) == number * int(one.attrib[what])
        assert all(len(more) == number * len(gpu) for more, gpu in zip(root, one, strict=True))
        executed(MscclXml, ElementTree.tostring(root, encoding="unicode"))


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
    for high, written in ((None, "0"), (4096, "4096")):
        root = check_xml(msccl_xml(schedules.ring(4), "test", 1024, high).text)
        assert (root.attrib["minBytes"], root.attrib["maxBytes"]) == ("1024", written)
    with pytest.raises(PlanError, match="ends at 0, which MSCCL reads as no limit"):
        msccl_xml(schedules.ring(4), "test", 0, 0)
