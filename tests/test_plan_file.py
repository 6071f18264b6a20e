"""The plan file: what it refuses, what it keeps, and what it stands for."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jaxcomm import plan, schedules
from jaxcomm.errors import PlanError
from jaxcomm.plan.files import MAX_BYTES, validate
from jaxcomm.plan.schema import canonical
from jaxcomm.schedules.template import Template

RANKS = 6
FUZZ_EXAMPLES = int(os.environ.get("JAXCOMM_FUZZ_EXAMPLES", "600"))  # raise to 10000 or more for a long hunt

PREDICTED = {
    "reference_bytes": 4096,
    "seconds": 1e-5,
    "ring": 2e-5,
    "halving_doubling": 2e-5,
    "direct": 1e-5,
    "broadcast": 3e-5,
    "lower_bound": 5e-6,
}
STRAGGLER = {"kind": "straggler", "late": "straggler", "chunks": 11}
HYBRID = {"kind": "hybrid", "late": "straggler", "chunks": 19, "covered": 7}


def entry(low: int, high: int | None, schedule: dict[str, Any]) -> dict[str, Any]:
    row = {"schedule": schedule, "seconds": 1e-5, "gain": 0.5, "verdict": "chosen"}
    return {
        "min_bytes": low,
        "max_bytes": high,
        "schedule": schedule,
        "predicted": PREDICTED,
        "alternatives": [row, {**row, "gain": -0.25, "verdict": "slower"}],
    }


DOCUMENT: dict[str, Any] = {
    "format": "jaxcomm-plan",
    "version": 1,
    "matches": {"ranks": RANKS, "dtypes": ["float32", "bfloat16"], "topology": None},
    "roles": {"straggler": 3},
    "template": schedules.template(RANKS).to_json(),
    "collectives": [
        entry(0, 511, {"kind": "direct"}),
        entry(512, 1023, {"kind": "broadcast", "late": "straggler"}),
        entry(1024, 65535, {"kind": "halving_doubling"}),
        entry(65536, 65536, STRAGGLER),
        entry(65537, 10**9, HYBRID),
        entry(10**9 + 1, None, {"kind": "ring"}),
    ],
    "assumptions": {
        "alpha_s": 3e-6,
        "beta_s_per_byte": 1e-10,
        "residual": 0.01,
        "samples": 12,
        "link_source": "made up, in mål",
        "ports": 16,
        "min_gain": 0.02,
        "delay": {
            "steps": 9,
            "late_steps": 8,
            "median_s": 0.01,
            "mean_s": 0.01,
            "max_s": 0.02,
            "first_quarter_s": 0.02,
            "last_quarter_s": 0.01,
        },
    },
    "step": {"buckets": 3, "bytes": 10**6, "plain_seconds": 0.02, "seconds": 0.01},
    "provenance": {
        "profile": "0" * 64,
        "solver": "cp_sat",
        "status": "OPTIMAL",
        "gap": 0.0,
        "seed": 0,
        "versions": {"ortools": "9.15.6755"},
    },
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The document with the value at the path replaced, or removed if `to` is Ellipsis."""
    document = copy.deepcopy(DOCUMENT)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return document


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the hash of its content, as canonical JSON has it."""
    return {**document, "hash": hashlib.sha256(canonical(document)).hexdigest()}


@pytest.fixture
def made() -> plan.Plan:
    return validate(DOCUMENT, "test")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def load(file: Path, document: Any, **options: Any) -> plan.Plan:
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return plan.load(file, **options)


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
    shuffled = dict(random.Random(0).sample(sorted(sealed(DOCUMENT).items()), len(DOCUMENT) + 1))
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


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "gap": (
        changed("collectives", 2, "min_bytes", to=1025),
        "collectives[2].min_bytes is 1025; the entry before ends at 1023, so it must be 1024",
    ),
    "overlap": (changed("collectives", 2, "min_bytes", to=1000), "collectives[2].min_bytes is 1000; the entry before"),
    "late start": (changed("collectives", 0, "min_bytes", to=1), "collectives[0].min_bytes is 1; the first entry must"),
    "end": (changed("collectives", 5, "max_bytes", to=2**40), "collectives[5].max_bytes is 1099511627776; the last"),
    "limitless": (changed("collectives", 1, "max_bytes", to=None), "collectives[1].max_bytes is null; only the last"),
    "backwards": (
        changed("collectives", 1, "max_bytes", to=5),
        "collectives[1].max_bytes is 5, below its min_bytes 512",
    ),
    "no entries": (changed("collectives", to=[]), "collectives is []; it must"),
    "kind": (
        changed("collectives", 1, "schedule", "kind", to="bcast"),
        "collectives[1].schedule.kind is 'bcast'; it must be one of 'ring', 'halving_doubling', 'direct'",
    ),
    "no kind": (changed("collectives", 1, "schedule", "kind", to=...), "collectives[1].schedule.kind is missing"),
    "unknown role": (
        changed("collectives", 1, "schedule", "late", to="slow"),
        'collectives[1].schedule.late is "slow", which roles does not bind',
    ),
    "role name": (changed("roles", to={"Straggler 1": 3}), "roles.Straggler 1"),
    "role rank": (changed("roles", "straggler", to=6), "roles.straggler is 6; with 6 ranks it must be in [0, 5]"),
    "negative rank": (changed("roles", "straggler", to=-1), "roles.straggler is -1; it must be greater than or equal"),
    "chunks": (
        changed("collectives", 3, "schedule", "chunks", to=0),
        "collectives[3].schedule.chunks is 0; it must be greater than or equal to 1",
    ),
    "huge chunks": (
        changed("collectives", 3, "schedule", "chunks", to=10**9),
        "collectives[3].schedule.chunks is 1000",
    ),
    "bool chunks": (changed("collectives", 3, "schedule", "chunks", to=True), "collectives[3].schedule.chunks is True"),
    "all covered": (
        changed("collectives", 4, "schedule", "covered", to=19),
        "collectives[4].schedule.covered is 19; it must be below chunks, which is 19",
    ),
    "ring blocks": (
        changed("collectives", 4, "schedule", "covered", to=8),
        "collectives[4].schedule.chunks - covered is 11; a ring over 6 ranks needs a multiple of 6",
    ),
    "verdict": (
        changed("collectives", 0, "alternatives", 1, "verdict", to="bad"),
        "collectives[0].alternatives[1].verdict",
    ),
    "in a row": (
        changed("collectives", 3, "alternatives", 1, "schedule", to={"kind": "straggler", "late": "straggler"}),
        "collectives[3].alternatives[1].schedule.chunks is missing",
    ),
    "no template": (
        changed("template", to=None),
        "template is null, but collectives[3].schedule is a straggler schedule",
    ),
    "template ranks": (changed("template", "ranks", to=7), "template.ranks is 7; matches.ranks is 6"),
    "short template": (changed("template", "send_age", to=[0, 1, 2]), "template"),
    "wild template": (changed("template", "send_peer", 2, to=4000), "template"),
    "wrong template": (changed("template", "receive_age", 0, to=3), "template"),
    "one rank": (changed("matches", "ranks", to=1), "matches.ranks is 1; it must be greater than or equal to 2"),
    "text": (changed("matches", "ranks", to="6"), "matches.ranks is '6'; it must be a valid integer"),
    "fraction": (changed("matches", "ranks", to=6.5), "matches.ranks is 6.5; it must be a valid integer"),
    "dtype": (changed("matches", "dtypes", to="float32"), "matches.dtypes is 'float32'; it must be a valid tuple"),
    "negative time": (
        changed("step", "seconds", to=-1.0),
        "step.seconds is -1.0; it must be greater than or equal to 0",
    ),
    "huge time": (changed("step", "seconds", to=1e300), "step.seconds is 1e+300; it must be less than or equal to"),
    "prose": (changed("provenance", "status", to="looks good"), "provenance.status is 'looks good'; it must"),
    "missing": (changed("provenance", "seed", to=...), "provenance.seed is missing"),
    "extra": (changed("step", "comment", to="hi"), "step.comment is not a field of a version 1 plan"),
    "version": (changed("version", to=2), "version is 2; this jaxcomm reads version 1"),
    "old version": (changed("version", to=0), "version is 0; it must be 1"),
    "format": (changed("format", to="jaxcomm-profile"), 'is not a jaxcomm plan: no "format": "jaxcomm-plan"'),
}


@pytest.mark.parametrize(("document", "message"), BROKEN.values(), ids=BROKEN)
def test_a_mistake_is_named_with_its_place_and_cure(file: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(file, sealed(document))
    text = str(caught.value)
    assert text.startswith(f"{file}: {message}"), text
    assert "\n  Cure: " in text


NOT_JSON = {
    "empty": "",
    "text": "hello",
    "truncated": json.dumps(DOCUMENT)[:-100],
    "twice": '{"format": "jaxcomm-plan", "version": 1, "version": 1}',
    "deep": "[" * 10**5,
    "long number": '{"format": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("text", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused(file: Path, text: str) -> None:
    with pytest.raises(PlanError, match="is not JSON"):
        load(file, text)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_named_with_its_place(file: Path, value: float) -> None:
    with pytest.raises(PlanError, match=rf"step.seconds is {value}; it must be a finite number"):
        load(file, changed("step", "seconds", to=value))


def test_a_changed_value_breaks_the_hash(file: Path, made: plan.Plan) -> None:
    tampered = {**sealed(DOCUMENT), "roles": {"straggler": 4}}
    with pytest.raises(PlanError, match=r"hash is .*but the content has") as caught:
        load(file, tampered)
    right = str(caught.value).partition("the content has ")[2][:64]
    assert load(file, {**tampered, "hash": right}).roles == {"straggler": 4}, "the message says how to mend the file"
    for nothing in ({}, {"hash": None}, {"hash": 5}):
        with pytest.raises(PlanError, match="hash is"):
            load(file, {**DOCUMENT, **nothing})


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "ranks": ({"ranks": 8}, "matches.ranks is 6; this job has 8 ranks"),
    "unknown role": ({"roles": {"slow": 1}}, "has no role 'slow'; its roles are: straggler"),
    "role rank": ({"roles": {"straggler": 6}}, "roles.straggler is 6; with 6 ranks it must be in"),
    "role type": ({"roles": {"straggler": "5"}}, "roles.straggler is '5'; it must be a valid integer"),
}


@pytest.mark.parametrize(("options", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_plan_for_something_else_is_refused(file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(file, sealed(DOCUMENT), **options)
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


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = [path for path in places(DOCUMENT) if path]
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5, 6, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from([..., "straggler", "hybrid", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TEXT = plan.encode(validate(DOCUMENT, "test")).encode()
CUTS = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 40), st.binary(max_size=20))


def spliced(cuts: list[tuple[int, int, bytes]]) -> bytes:
    data = TEXT
    for at, length, new in cuts:
        data = data[:at] + new + data[at + length :]
    return data


def resealed(changes: list[tuple[tuple[Any, ...], Any]]) -> bytes:
    """A file with some values changed, and with the right hash if there is any for it."""
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes:
        place: Any = document
        try:
            for step in path[:-1]:
                place = place[step]
            if value is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = value
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    try:
        document["hash"] = validate(json.loads(json.dumps(document, default=str)), "fuzz").hash
    except PlanError:
        document["hash"] = "0" * 64
    return json.dumps(document, default=str).encode()


FILES = st.one_of(
    st.binary(max_size=200),
    st.lists(CUTS, min_size=1, max_size=4).map(spliced),
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3).map(resealed),
)


@settings(
    max_examples=FUZZ_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(data=FILES)
@example(data=resealed([(("template", "ranks"), 10**30)]))
@example(data=resealed([(("template", "colours"), [0] * 32)]))
def test_whatever_the_file_holds_only_a_plan_error_comes_out(data: bytes, file: Path) -> None:
    file.write_bytes(data)
    try:
        loaded = plan.load(file)
    except PlanError as error:
        assert str(error).startswith(f"{file}: ")
        assert "Cure: " in str(error)
    else:
        assert plan.verify(loaded).subject == "plan", "whatever is accepted gives every rank the sum"


LARGE = """
import json, resource, sys, time
start = time.perf_counter()
from jaxcomm import plan
loaded = plan.load(sys.argv[1], ranks=1024)
seconds = time.perf_counter() - start
heavy = {"jax", "jaxlib", "ortools", "scipy", "matplotlib"} & set(sys.modules)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "mib": memory, "heavy": sorted(heavy), "hash": loaded.hash}))
"""


def test_a_plan_for_1024_ranks_is_small_and_quick(file: Path) -> None:
    ranks = 1024
    stragglers = [{**STRAGGLER, "chunks": chunks} for chunks in (5, 64, 500, 1023, 2046, 4092)]
    hybrids = [{**HYBRID, "covered": covered, "chunks": covered + 1024} for covered in (7, 512, 1023)]
    specs = [{"kind": "halving_doubling"}, *stragglers, *hybrids, {"kind": "ring"}]
    lows = [0, *(2**i for i in range(10, 9 + len(specs))), None]
    large = {
        **DOCUMENT,
        "matches": {**DOCUMENT["matches"], "ranks": ranks},
        "template": schedules.template(ranks).to_json(),
        "collectives": [
            entry(low, None if high is None else high - 1, spec)
            for low, high, spec in zip(lows[:-1], lows[1:], specs, strict=True)
        ],
    }
    made = validate(large, "test")
    plan.save(made, file)
    assert file.stat().st_size < 2**20
    # A shell in between: a new process begins with the peak memory of the one that started it.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", LARGE, str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    assert measured["hash"] == made.hash
    assert not measured["heavy"]
    assert measured["seconds"] < 2, measured
    assert measured["mib"] < 300, measured


def test_a_template_that_misses_a_rank_is_found_out(file: Path) -> None:
    template = schedules.template(RANKS)
    for table in ("send_peer", "send_age", "receive_peer", "receive_age"):
        for index, value in enumerate(getattr(template, table)):
            for wrong in (value - 1, value + 1):
                with pytest.raises(PlanError, match="template"):
                    load(file, sealed(changed("template", table, index, to=wrong)))
    first, second, *rest = sorted(template.turns, key=lambda turn: -turn.age)
    assert first.age > second.age > 0
    swapped = [first._replace(age=second.age), second._replace(age=first.age), *rest]
    consistent = Template.of_turns(RANKS, template.colours, swapped).to_json()
    with pytest.raises(PlanError, match=r"template: a chunk reaches|template: Turn.* (brings|sends) a chunk"):
        load(file, sealed(changed("template", to=consistent)))
