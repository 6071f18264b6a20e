"""The scripts that redo figures of papers: their numbers against closed forms and against what the papers say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "papers"


@pytest.fixture(scope="module")
def straggler() -> ModuleType:
    return script("straggler")


@pytest.fixture(scope="module")
def mlt() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return script("mlt")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_figure", SCRIPTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(rounds: float, volume: float) -> float:
    return rounds * 3e-6 + volume * 2**30 / 450e9


# Table 1 and section 4.1 of the paper, by hand: rounds and volume of ring, halving and doubling, broadcast, StragglAR.
CLOSED = {
    8: [(14, 7 / 4), (6, 7 / 4), (3, 3), (9, 9 / 7)],
    256: [(510, 255 / 128), (16, 255 / 128), (8, 8), (262, 262 / 255)],
}


@pytest.mark.parametrize("ranks", CLOSED)
def test_straggler_figure_at_powers_of_two_is_the_closed_form(straggler: ModuleType, ranks: int) -> None:
    row = straggler.row(ranks)
    expected = [seconds(*terms) for terms in CLOSED[ranks]]
    assert [*row.their_baselines, row.theirs] == pytest.approx(expected, rel=1e-12)
    assert [*row.our_baselines, row.ours] == pytest.approx(expected, rel=1e-12)
    assert row.their_rounds == row.our_rounds == CLOSED[ranks][3][0]


@pytest.mark.parametrize(("ranks", "log"), [(8, 3), (12, 4), (256, 8), (768, 10)])
def test_straggler_figure_has_the_best_of_all_chunk_counts(straggler: ModuleType, ranks: int, log: int) -> None:
    row = straggler.row(ranks)
    least, chunks = min((seconds(k - 1 + log, (k - 1 + log) / k), k) for k in range(1, 2000))
    assert (row.best, row.best_chunks) == (pytest.approx(least, rel=1e-12), chunks)


@pytest.mark.parametrize(("ranks", "theirs", "ours"), [(6, 7, 7), (12, 15, 14), (48, 57, 52), (192, 208, 198)])
def test_straggler_figure_at_midpoints_counts_rounds(straggler: ModuleType, ranks: int, theirs: int, ours: int) -> None:
    row = straggler.row(ranks)
    assert (row.their_rounds, row.our_rounds) == (theirs, ours)
    assert row.theirs == pytest.approx(seconds(theirs, theirs / (ranks - 1)))
    assert row.ours == pytest.approx(seconds(ours, ours / (ranks - 1)))


def test_straggler_figure_shows_what_the_paper_says_of_it(straggler: ModuleType) -> None:
    """Section 4.3: faster than every baseline at every size shown, and nearly twice as fast as a ring at 256."""
    rows = [straggler.row(n) for n in (*straggler.POWERS, *straggler.MIDPOINTS) if n <= straggler.THEIR_LARGEST]
    assert len(rows) == 13
    for row in rows:
        assert row.best <= row.ours <= row.theirs < min(row.their_baselines)
    assert 1.9 < straggler.row(256).their_baselines.ring / straggler.row(256).theirs < 2


def test_straggler_figure_goes_beyond_theirs(straggler: ModuleType) -> None:
    row = straggler.row(768)
    assert (row.their_rounds, row.theirs) == (None, None)
    assert row.our_rounds == 768 - 2 + 10


def test_straggler_script_prints_and_writes(
    straggler: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straggler.main(["--out", str(tmp_path / "new")])
    text = capsys.readouterr().out
    assert (tmp_path / "new" / "straggler.txt").read_text() == text
    assert (tmp_path / "new" / "straggler.png").read_bytes().startswith(b"\x89PNG")
    assert all(f"\n{n:>5}  " in text for n in (*straggler.POWERS, *straggler.MIDPOINTS))


@pytest.mark.parametrize(
    ("model", "parameters", "multiply_adds", "tensors"),
    [("ResNet50", 25_557_032, 4.09e9, 161), ("GoogleNet", 6_998_552, 1.58e9, 116)],
)
def test_mlt_figure_has_the_published_networks(
    mlt: ModuleType, model: str, parameters: int, multiply_adds: float, tensors: int
) -> None:
    layers = mlt.MODELS[model]()
    assert sum(sum(layer.tensors) for layer in layers) == parameters
    assert sum(layer.flops for layer in layers) == pytest.approx(multiply_adds, rel=2e-3)
    assert sum(len(layer.tensors) for layer in layers) == tensors


def completion(mlt: ModuleType, scheme: str, flows: object, seed: int = 0) -> np.ndarray:
    return mlt.completion_s(flows, mlt.SCHEMES[scheme], np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("scheme", "trips"),
    [("DCTCP", 4), ("PIAS", 4), ("pFabric", 1), ("NDP", 1), ("MLT", 1), ("MLT by delay only", 1)],
)
def test_mlt_figure_a_flow_alone_takes_what_its_window_needs(mlt: ModuleType, scheme: str, trips: int) -> None:
    """100 packets: windows of 10, 20, 40 and 80, or all of them at once; the push and then the pull."""
    one = mlt.flows([sys.modules["mlt_traffic"].Layer((1,), 0.0)], 4, 1, np.random.default_rng(0))
    alone = one._replace(
        src=np.array([0, 7]),
        dst=np.array([7, 0]),
        tensor=np.zeros(2, dtype=np.int64),
        packets=np.full(2, 100.0),
        front=np.zeros(2),
        ready_s=np.zeros(1),
    )
    assert completion(mlt, scheme, alone) == pytest.approx(trips * 24e-6)


@pytest.mark.parametrize("scheme", ["DCTCP", "PIAS", "pFabric", "NDP", "MLT", "MLT by delay only"])
def test_mlt_figure_no_scheme_beats_the_server_s_link(mlt: ModuleType, scheme: str) -> None:
    flows = mlt.flows(mlt.MODELS["GoogleNet"](), 4, 1, np.random.default_rng(0))
    seconds = completion(mlt, scheme, flows)
    assert np.isfinite(seconds).all()
    assert np.array_equal(seconds, completion(mlt, scheme, flows))
    part = 27 * 4_096_000 * (1 - mlt.SCHEMES[scheme].tolerated)  # the last layer's weights from 27 workers
    assert seconds.max() >= part / 12.5e9


def test_mlt_figure_orders_the_schemes_as_the_paper_does(mlt: ModuleType) -> None:
    """144 hosts, gradients compressed 32 times: what a timeout costs is then more than what the bytes cost."""
    found = mlt.results("GoogleNet", 32, [144], [0])
    times = {name: found[name, 144] for name in mlt.SCHEMES}
    for other in ("DCTCP", "PIAS", "pFabric"):
        assert times["MLT"].average < times["NDP"].average < 0.5 * times[other].average
        assert times["MLT"].tail < times["NDP"].tail < 0.15 * times[other].tail
        assert times[other].tail > 10e-3  # a timeout
    assert times["NDP"].longest < 10e-3


def test_mlt_figure_with_whole_gradients_is_bound_by_bytes(mlt: ModuleType) -> None:
    """Ahead by little more than the 10 % that MLT leaves out, where the paper has a tail of a twelfth."""
    found = mlt.results("ResNet50", 1, [36], [0])
    for other in ("DCTCP", "PIAS", "pFabric", "NDP"):
        assert found["MLT", 36].average < found[other, 36].average
        assert found["MLT", 36].tail < found[other, 36].tail
    assert 0 < mlt.reductions(found, "DCTCP").tail < 30


def test_mlt_script_prints_and_writes(
    mlt: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlt, "HOSTS", [36])
    monkeypatch.setattr(mlt, "SEEDS", [0])
    monkeypatch.setattr(mlt, "COMPRESSIONS", [32])
    mlt.main(["--out", str(tmp_path / "new")])
    captured = capsys.readouterr()
    assert (tmp_path / "new" / "mlt.txt").read_text() == captured.out
    assert (tmp_path / "new" / "mlt.png").read_bytes().startswith(b"\x89PNG")
    assert all(f"\n{name}  " in captured.out for name in mlt.SCHEMES)
    assert "ResNet50, compressed 32×, 36 hosts" in captured.err
