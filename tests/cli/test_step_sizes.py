"""`jaxcomm profile --sizes FILE`: the sizes of a training's sums."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from jaxcomm import profile
from jaxcomm.cli.common import step_sizes
from jaxcomm.profile import Bucket, Link, Profile, Provenance


def saved(path: Path, sizes: list[int]) -> str:
    buckets = [Bucket(name=str(i), bytes=size, ready_s=1e-3 * i) for i, size in enumerate(sizes)]
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    found = Profile(ranks=4, link=link, buckets=buckets, provenance=Provenance(source="a test", tool="pytest"))
    profile.save(found, path)
    return str(path)


def test_a_steps_buckets_and_their_sum_are_timed(tmp_path: Path) -> None:
    buckets = [1 << 20, 1 << 20, (1 << 20) + 64, 16 << 20, 4096]
    found = step_sizes.sizes(saved(tmp_path / "profile.json", buckets))
    assert found == [4096, 1 << 20, sum(buckets)]  # the 16 MiB bucket is too close to the sum of all buckets


def test_at_most_six_sizes_of_a_step_are_timed(tmp_path: Path) -> None:
    found = step_sizes.sizes(saved(tmp_path / "profile.json", [4 << (2 * i) for i in range(10)]))
    assert len(found) == step_sizes.MOST and found[-1] >= 4 << 18


def test_words_are_sizes_and_files_without_sums_are_refused(tmp_path: Path) -> None:
    assert step_sizes.sizes("1KiB,4KiB") == [1024, 4096]
    with pytest.raises(ArgumentTypeError, match="has no gradient buckets and no sums"):
        step_sizes.sizes(saved(tmp_path / "profile.json", []))
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ArgumentTypeError):
        step_sizes.sizes(str(tmp_path / "other.json"))
