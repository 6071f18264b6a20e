"""Files of other tools, changed at random: an importer either reads a file or raises ProfileError."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import profile
from jaxcomm.errors import ProfileError
from jaxcomm.profile import importers, run_statistics
from jaxcomm.profile.importers import xplane

FIXTURES = Path(__file__).parents[1] / "fixtures"
TABLES = ("nccl_tests.txt", "nccl_tests.json", "nccl_tests_old_all_gather.txt")
NETWORKS = ("nccl_topology.xml", "nvidia_smi_topo.txt", "pair_rates_of_gpus.txt", "pair_rates_of_hosts.txt")
SEEDS = [FIXTURES / name for name in ("training_log.txt", *TABLES, *NETWORKS)]
SITE = {
    "name": "psum",
    "axes": "data",
    "plan": "direct",
    "ranks": 4,
    "bytes": 4096,
    "calls": 9,
    "failed": 0,
    "transfer_s": 1e-3,
    "early_bytes_share": 0.1,
    "wait_s": [0.1] * 4,
    "late": [0, 1, 0, 0],
    "work_s": [],
    "arrivals": [[0.0, 0.1, 0.2, 0.3]] * 3,
    "after_arrival_s": [1e-3, 2e-3, 1.5e-3],
}
STATS = json.dumps({"format": "jaxcomm-stats", "version": 1, "sites": [SITE, {**SITE, "bytes": 8192}]}, indent=1)
TOKENS = [b"nan", b"-1", b"0", b"1e9", b"1e-300", b"1e308", b"99999999999999999999", b"null", b"[]", b"\xff"]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A fixture with some lines repeated, dropped or swapped, and some bytes replaced."""
    lines = draw(st.sampled_from([STATS.encode(), *(seed.read_bytes() for seed in SEEDS)])).split(b"\n")
    order = draw(st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines)) | st.just(range(len(lines))))
    data = bytearray(b"\n".join(lines[index] for index in order))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3) | st.sampled_from(TOKENS))
    if numbers := [*re.finditer(rb"[\d.]+", bytes(data))]:
        number = draw(st.sampled_from(numbers))
        data[number.start() : number.end()] = draw(st.sampled_from(TOKENS))
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(data=mutated() | st.binary(max_size=200))
def test_text_parsers_raise_nothing_else(data: bytes) -> None:
    for importer in (each for each in importers._IMPORTERS if each is not xplane):
        importer.sniff(data)
        try:
            measured = importer.read(data, "mutated", "")
        except ProfileError as error:
            assert str(error).startswith("mutated")
        else:
            assert profile.validate(measured.model_dump(), "again") == measured


TRACE = (FIXTURES / "cpu.xplane.pb").read_bytes()


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, len(TRACE)), at=st.integers(0, len(TRACE) - 1), byte=st.integers(0, 255))
def test_trace_parser_raises_nothing_else(cut: int, at: int, byte: int) -> None:
    for data in (TRACE[:cut], TRACE[:at] + bytes([byte]) + TRACE[at + 1 :]):
        try:
            xplane.read(data, "mutated", "")
        except ProfileError as error:
            assert str(error).startswith("mutated")


def test_saved_statistics_are_read_and_contradictions_in_them_refused() -> None:
    assert run_statistics.read(STATS.encode(), "stats", "").ranks == 4
    for wrong in ({"arrivals": [[0.0, 0.1]] * 3}, {"arrivals": [[0.1] * 4] * 3}, {"after_arrival_s": []}):
        document = {"format": "jaxcomm-stats", "version": 1, "sites": [{**SITE, **wrong}]}
        with pytest.raises(ProfileError, match="stats: "):
            run_statistics.read(json.dumps(document).encode(), "stats", "")


def test_each_format_is_sniffed_by_one_importer_only() -> None:
    for file in [*SEEDS, FIXTURES / "cpu.xplane.pb"]:
        data = file.read_bytes()
        assert sum(importer.sniff(data) for importer in importers._IMPORTERS) == 1, file
