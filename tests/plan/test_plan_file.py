"""The plan file: its content, its schedules, and how it is read and written."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcomm import plan, schedules
from jaxcomm.errors import PlanError
from jaxcomm.files import canonical
from jaxcomm.plan.files import MAX_BYTES, validate
from tests.plan.documents import HALVES, HYBRID, PLAN, RANKS, STRAGGLER, entry, load, replaced, sealed

changed = partial(replaced, PLAN)


@pytest.fixture
def made() -> plan.Plan:
    return validate(PLAN, "test")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def test_a_plan_survives_its_file(made: plan.Plan, file: Path) -> None:
    plan.save(made, file)
    assert plan.load(file) == made
    assert json.loads(file.read_text())["hash"] == made.hash
    assert max(len(line) for line in file.read_text().splitlines()) < 200, "readable by people"


def test_the_hash_is_of_the_canonical_bytes(made: plan.Plan) -> None:
    fields = made.model_dump(mode="json")
    assert fields.pop("hash") == made.hash == hashlib.sha256(made.canonical_bytes()).hexdigest()
    assert made.canonical_bytes() == canonical(fields)
    assert b" " not in made.canonical_bytes().replace("made up, in mål".encode(), b"")


def test_how_the_json_is_written_does_not_matter(made: plan.Plan, file: Path) -> None:
    shuffled = dict(random.Random(0).sample(sorted(sealed(PLAN).items()), len(PLAN) + 1))
    for text in (json.dumps(shuffled), json.dumps(shuffled, indent=7), canonical(shuffled).decode()):
        assert load(file, text).canonical_bytes() == made.canonical_bytes()


def test_any_change_changes_the_hash(made: plan.Plan) -> None:
    hashes = {made.hash}
    hashes.add(validate(changed("roles", "straggler", to=2), "test").hash)
    hashes.add(validate(changed("step", "seconds", to=0.011), "test").hash)
    hashes.add(validate(changed("matches", "dtypes", to=None), "test").hash)
    assert len(hashes) == 4


def test_the_exported_schema_describes_the_file(made: plan.Plan) -> None:
    schema = plan.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    file = json.loads(plan.encode(made))
    jsonschema.validate(file, schema)
    for document in ({**file, "extra": 1}, {**file, "version": 2}, {k: v for k, v in file.items() if k != "hash"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)


SIZES = {0: "direct", 511: "direct", 512: "broadcast", 1024: "halving_doubling", 65535: "halving_doubling"}
SIZES |= {65536: "straggler", 65537: "hybrid", 10**9: "hybrid", 10**9 + 1: "ring", 2**50: "ring"}


@pytest.mark.parametrize(("nbytes", "kind"), SIZES.items())
def test_every_size_has_its_schedule(made: plan.Plan, nbytes: int, kind: str) -> None:
    schedule = made.schedule_for(nbytes, "float32")
    assert schedule is not None
    assert (schedule.kind, schedule.ranks) == (kind, RANKS)
    assert schedule.late == (3 if kind in ("broadcast", "straggler", "hybrid") else None)
    assert schedule == made.schedule_for(nbytes)
    assert made.schedule_for(nbytes, "int32") is None


def test_parameters_reach_the_schedules(made: plan.Plan) -> None:
    assert made.schedules[3] == schedules.straggler(RANKS, 3, 11)
    assert made.schedules[4] == schedules.hybrid(RANKS, 3, 19, 7)


def test_halves_are_by_bytes_of_the_whole_buffer(made: plan.Plan, file: Path) -> None:
    assert made.half_for("all_gather", 2**20) is None
    with_halves = changed("halves", to=HALVES)
    held = load(file, sealed(with_halves))
    assert plan.load(file) == held != made
    for half in ("reduce_scatter", "all_gather"):
        assert held.half_for(half, 2**20 - 1) == schedules.half(half, schedules.direct(RANKS))
        assert held.half_for(half, 2**20, "float32") == schedules.half(half, schedules.ring(RANKS))
        assert held.half_for(half, 2**20, "int32") is None
    assert len(plan.proofs(held)) == len(plan.proofs(made)) + 4


def test_every_schedule_is_proved(made: plan.Plan) -> None:
    proof = plan.verify(made)
    assert (proof.subject, proof.ranks, proof.chunks) == ("plan", RANKS, 19)
    assert proof.counts["entries"] == proof.counts["schedules"] == len(plan.proofs(made)) == 6
    assert plan.verify(made.schedules[3]) == plan.proofs(made)[3]


def test_a_moved_straggler_needs_no_new_plan(made: plan.Plan, file: Path) -> None:
    plan.save(made, file)
    moved = plan.load(file, roles={"straggler": 5})
    assert [schedule.late for schedule in moved.schedules] == [None, 5, None, 5, 5, None]
    assert plan.verify(moved).counts == plan.verify(made).counts
    assert moved.hash != made.hash
    assert plan.bind(moved, {"straggler": 3}) == made


def test_a_changed_value_breaks_the_hash(file: Path, made: plan.Plan) -> None:
    tampered = {**sealed(PLAN), "roles": {"straggler": 4}}
    with pytest.raises(PlanError, match=r"hash is .*but the content has") as caught:
        load(file, tampered)
    right = str(caught.value).partition("the content has ")[2][:64]
    assert load(file, {**tampered, "hash": right}).roles == {"straggler": 4}, "the message says how to mend the file"
    for nothing in ({}, {"hash": None}, {"hash": 5}):
        with pytest.raises(PlanError, match="hash is"):
            load(file, {**PLAN, **nothing})


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "ranks": ({"ranks": 8}, "matches.ranks is 6; this job has 8 ranks"),
    "unknown role": ({"roles": {"slow": 1}}, "has no role 'slow'; its roles are: straggler"),
    "role rank": ({"roles": {"straggler": 6}}, "roles.straggler is 6; with 6 ranks it must be in"),
    "role type": ({"roles": {"straggler": "5"}}, "roles.straggler is '5'; it must be a valid integer"),
}


@pytest.mark.parametrize(("options", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_plan_for_something_else_is_refused(file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(file, sealed(PLAN), **options)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in {
        tmp_path / "missing.json": "cannot be read: No such file",
        tmp_path: "cannot be read: Is a directory",
        Path("a\0b"): "cannot be read",
        huge: "is larger than 16 MiB",
        binary: "is not JSON",
    }.items():
        with pytest.raises(PlanError, match=message):
            plan.load(path)


def test_a_file_is_written_whole_or_not_at_all(made: plan.Plan, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "replace", fail)
        with pytest.raises(PlanError, match="cannot be written: No space left"):
            plan.save(made, file)
    assert file.read_text() == "before"
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no temporary file is left"
    with pytest.raises(PlanError, match="cannot be written: No such file"):
        plan.save(made, file.parent / "none" / "plan.json")
    plan.save(made, file)
    assert file.stat().st_mode & 0o777 == 0o644


LARGE = """
import json, resource, sys
from jaxcomm import plan
loaded = plan.load(sys.argv[1], ranks=1024)
heavy = {"jax", "jaxlib", "ortools", "scipy", "matplotlib"} & set(sys.modules)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"mib": memory, "heavy": sorted(heavy), "hash": loaded.hash}))
"""


def test_a_plan_for_1024_ranks_is_small(file: Path) -> None:
    ranks = 1024
    stragglers = [{**STRAGGLER, "chunks": chunks} for chunks in (5, 64, 500, 1023, 2046, 4092)]
    hybrids = [{**HYBRID, "covered": covered, "chunks": covered + 1024} for covered in (7, 512, 1023)]
    specs = [{"kind": "halving_doubling"}, *stragglers, *hybrids, {"kind": "ring"}]
    lows = [0, *(2**i for i in range(10, 9 + len(specs))), None]
    large = {
        **PLAN,
        "step": None,
        "matches": {**PLAN["matches"], "ranks": ranks},
        "template": schedules.template(ranks).to_json(),
        "collectives": [
            entry(low, None if high is None else high - 1, spec)
            for low, high, spec in zip(lows[:-1], lows[1:], specs, strict=True)
        ],
    }
    made = validate(large, "test")
    plan.save(made, file)
    assert file.stat().st_size < 2**20
    # A shell starts the process, because a process inherits the peak memory of its parent.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", LARGE, str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    assert measured["hash"] == made.hash
    assert not measured["heavy"]
    assert measured["mib"] < 300, measured
