"""The rules of MSCCL++'s and MSCCL's parsers: a JSON Schema, and checks of the XML."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import fastjsonschema


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
NAME = {"type": "string"}
PART = record(tb_id=number(0, 31), tbg_size=number(2, 32))
OPERATIONS = {
    "nop": record(name=NAME),
    "signal": record(name=NAME, **TOKEN),
    "wait": record(name=NAME, **TOKEN),
    "put": record(name=NAME, src_buff=array(LOCAL, 1, 8), dst_buff=array(REMOTE, 1, 8), channel_type=MEMORY),
    "re": record(name=NAME, src_buff=array(LOCAL, 2, 9), dst_buff=array(LOCAL, 1, 1), reduce_op={"const": "sum"}),
    "res": record(
        name=NAME,
        src_buff=array(LOCAL, 2, 9),
        dst_buff=array({"anyOf": [LOCAL, REMOTE]}, 2, 9),
        reduce_op={"const": "sum"},
        channel_type=MEMORY,
    ),
    "copy": record(name=NAME, src_buff=array(LOCAL, 1, 1), dst_buff=array(LOCAL, 1, 1)),
}
for name in ("put", "re", "res", "copy"):
    OPERATIONS[name]["properties"]["tbg_info"] = PART
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
                    ops=array({"type": "object"}, 1, 64),
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
_validate_mscclpp = fastjsonschema.compile(MSCCLPP_SCHEMA)
_validate_operation = {name: fastjsonschema.compile(schema) for name, schema in OPERATIONS.items()}

ATTRIBUTES = {
    "algo": "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes",
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}
WORDS = {"name": r"[\w-]+", "proto": "Simple", "coll": "allreduce", "type": "s|r|rrc|nop", "srcbuf": "i", "dstbuf": "i"}


def check_mscclpp(text: str) -> dict[str, Any]:
    """Checks a plan by the rules of MSCCL++'s parser and executor."""
    document = json.loads(text)
    _validate_mscclpp(document)
    for rank, gpu in enumerate(document["gpus"]):
        assert gpu["id"] == rank
        assert [block["id"] for block in gpu["threadblocks"]] == list(range(len(gpu["threadblocks"])))
        ids = [i for block in gpu["threadblocks"] for i in block["channels"][0]["channel_ids"]]
        assert ids == list(range(len(gpu["channels"][0]["connected_to"]))), "a channel belongs to one block"
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                _validate_operation[op["name"]](op)
            channels = len(block["channels"][0]["channel_ids"])
            assert all(i < channels for op in block["ops"] for i in op.get("channel_ids", []))
    assert document["min_message_size"] % (16 * document["gpus"][0]["input_chunks"]) == 0
    return document


def check_xml(text: str) -> ElementTree.Element:
    """Checks an algorithm by the rules of MSCCL's parser."""
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
            assert tb.attrib["send"] != "-1" or tb.attrib["recv"] != "-1"
            for place, step in enumerate(tb):
                assert int(step.attrib["s"]) == place and int(step.attrib["cnt"]) <= 71
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
    for way in (sends, receives):
        for end in (0, 1):
            peers = Counter((link[end], link[2]) for link in way)
            assert max(peers.values()) <= 32, "peers per channel and direction"
    assert len({*sends}) == len(sends) and sorted(sends) == sorted(receives), "a connection has one block at each end"
    return root
