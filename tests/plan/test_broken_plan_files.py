"""Plan files that must be refused: each mistake is named with its place and cure, and any bytes give a PlanError."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jaxcomm import plan, schedules
from jaxcomm.errors import PlanError
from jaxcomm.plan.files import validate
from jaxcomm.schedules.template import Template
from tests.plan.documents import HALVES, PLAN, RANKS, load, replaced, sealed

FUZZ_EXAMPLES = int(os.environ.get("JAXCOMM_FUZZ_EXAMPLES", "600"))  # set to 10000 or more for a long search

changed = partial(replaced, PLAN)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


STRAGGLER: dict[str, Any] = {"kind": "straggler", "late": "straggler", "chunks": 10}
SELECTOR = {"rank": "straggler", "lateness_s": 0.01, "early": {"kind": "ring"}, "late": STRAGGLER, "seconds": 0.01}
LACKING = {"hosts": [*range(RANKS)], "nic": "rank", "slow": 1.0, "nics": [2.0] + [1.0] * (RANKS - 1)}
HIERARCHICAL = {"kind": "hierarchical", "chunks": 12}
LOST_RANGE = {
    "min_bytes": 1024,
    "max_bytes": None,
    "schedule": HIERARCHICAL,
    "reference_bytes": 4000,
    "seconds": 1,
    "otherwise": 2,
}
LOST = {"rank": 0, "rail": "eth0", "topology": LACKING, "ranges": [LOST_RANGE]}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "topology": (
        changed("matches", "topology", to="0" * 64),
        f"matches.topology is '{'0' * 64}'; it must be None",
    ),
    "gap": (
        changed("collectives", 2, "min_bytes", to=1025),
        "collectives[2].min_bytes is 1025; the entry before ends at 1023, so it must be 1024",
    ),
    "executor": (changed("collectives", 2, "executor", to="fused"), "collectives[2].executor is 'fused'"),
    "the core by its name": (
        changed("collectives", 2, "executor", to="core"),
        "collectives[2].executor is 'core'; "
        "it must be 'xla', or null for the platform's own, which is the core on CPUs",
    ),
    "late join of no chunk": (
        changed("collectives", 3, "schedule", to=STRAGGLER | {"kind": "late_join", "chunks": 0}),
        "collectives[3].schedule.chunks is 0",
    ),
    "overlap": (changed("collectives", 2, "min_bytes", to=1000), "collectives[2].min_bytes is 1000; the entry before"),
    "late start": (changed("collectives", 0, "min_bytes", to=1), "collectives[0].min_bytes is 1; the first entry must"),
    "end": (changed("collectives", 5, "max_bytes", to=2**40), "collectives[5].max_bytes is 1099511627776; the last"),
    "limitless": (changed("collectives", 1, "max_bytes", to=None), "collectives[1].max_bytes is null; only the last"),
    "backwards": (
        changed("collectives", 1, "max_bytes", to=5),
        "collectives[1].max_bytes is 5, below its min_bytes 512",
    ),
    **{
        f"selector, {name}": (changed("collectives", 3, "selector", to={**SELECTOR, **wrong}), message)
        for name, wrong, message in [
            ("nobody", {"rank": "nobody"}, 'collectives[3].selector.rank is "nobody", which roles does not bind'),
            ("never", {"lateness_s": 0}, "collectives[3].selector.lateness_s is 0"),
            ("no kind", {"early": {"kind": "none"}}, "collectives[3].selector.early"),
            (
                "no role of several",
                {"late": {"kind": "chain", "late": ["straggler", 5], "chunks": 1}},
                "collectives[3].selector.late.late[1] is 5",
            ),
            ("no chunk", {"late": STRAGGLER | {"chunks": 0}}, "collectives[3].selector.late.chunks is 0"),
            (
                "unbound",
                {"late": STRAGGLER | {"late": "other"}},
                'collectives[3].selector.late.late is "other", which',
            ),
            (
                "turns of one rank",
                {"rank": "any", "late": STRAGGLER},
                'collectives[3].selector.late.late is "straggler"; the selector\'s rank is "any"',
            ),
            (
                "turns without a late rank",
                {"rank": "any", "late": {"kind": "ring"}},
                "collectives[3].selector.late is a ring schedule, which is not for one late rank",
            ),
            (
                "any rank without turns",
                {"late": STRAGGLER | {"late": "any"}},
                'collectives[3].selector.late.late is "any", which roles does not bind',
            ),
        ]
    },
    **{
        f"lost rail, {name}": (changed("lost_rails", to=[{**LOST, **wrong}]), message)
        for name, wrong, message in [
            (
                "rank",
                {"rank": RANKS},
                f"lost_rails[0].rank is {RANKS}; with {RANKS} ranks it must be in [0, {RANKS - 1}]",
            ),
            (
                "hosts",
                {"topology": {**LACKING, "hosts": [0, 1], "nics": []}},
                "lost_rails[0].topology.hosts has 2 entries",
            ),
            ("no range", {"ranges": []}, "lost_rails[0].ranges has 0 entries"),
            (
                "an end",
                {"ranges": [{**LOST_RANGE, "max_bytes": 2048}]},
                "lost_rails[0].ranges[0].max_bytes is 2048; it must be null",
            ),
            (
                "a gap",
                {"ranges": [{**LOST_RANGE, "max_bytes": 4094}, {**LOST_RANGE, "min_bytes": 4096}]},
                "lost_rails[0].ranges[0].max_bytes is 4094; it must be 4095",
            ),
            (
                "another size",
                {"ranges": [{**LOST_RANGE, "reference_bytes": 9}]},
                "lost_rails[0].ranges[0].reference_bytes is 9, outside",
            ),
            (
                "late",
                {"ranges": [{**LOST_RANGE, "schedule": HIERARCHICAL | {"late": ["straggler"]}}]},
                "lost_rails[0].ranges[0].schedule.late names ranks",
            ),
            (
                "chunks",
                {"ranges": [{**LOST_RANGE, "schedule": HIERARCHICAL | {"chunks": 0}}]},
                "lost_rails[0].ranges[0].schedule.chunks is 0",
            ),
            (
                "kind",
                {"ranges": [{**LOST_RANGE, "schedule": {"kind": "ring"}}]},
                "lost_rails[0].ranges[0].schedule is a ring schedule",
            ),
        ]
    },
    "lost rail, twice": (
        changed("lost_rails", to=[LOST, LOST]),
        f"lost_rails[1] is for rank {LOST['rank']} and rail {LOST['rail']!r}, like lost_rails[0]",
    ),
    "halves' gap": (
        changed("halves", to=replaced(HALVES, 1, "min_bytes", to=2**20 + 1)),
        "halves[1].min_bytes is 1048577; the entry before ends at 1048575",
    ),
    "halves' hosts": (
        changed("halves", to=replaced(HALVES, 1, "schedule", to={"kind": "hierarchical", "chunks": 6})),
        "network is null, but halves[1].schedule is made for the hosts",
    ),
    "hierarchical halves without hosts": (
        changed("collectives", 0, "schedule", to={"kind": "hierarchical_halves"}),
        "network is null, but collectives[0].schedule is made for the hosts",
    ),
    "halves of no power of two": (
        changed("halves", to=replaced(HALVES, 0, "schedule", to={"kind": "halving_doubling"})),
        "halves[0].schedule.kind is halving_doubling, but 6 ranks are not a power of two",
    ),
    "halves' chunks": (
        replaced(
            changed("halves", to=replaced(HALVES, 1, "schedule", to={"kind": "hierarchical", "chunks": 12})),
            "network",
            to={"topology": {"hosts": [0, 0, 0, 1, 1, 1], "nic": "rank", "slow": 2.0}},
        ),
        "halves[1].schedule has chunks 12, late [], within 0 and across 0; a reduce-scatter has 6 chunks",
    ),
    "step count": (changed("step", "buckets", to=2), "step.buckets is 2, but step.gradients has 3"),
    "step order": (
        changed("step", "gradients", 1, "ready_s", to=0.0005),
        "step.gradients[1].ready_s is 0.0005, before that of the previous gradient",
    ),
    "step cover": (
        changed("step", "planned", 1, "gradients", to=1),
        "step.planned holds 2 gradients; step.gradients has 3",
    ),
    "step bytes": (
        changed("step", "planned", 1, "bytes", to=5),
        "step.planned[1].bytes is 5; its gradients have 934464",
    ),
    "step total": (changed("step", "bytes", to=5), "step.bytes is 5; its gradients have 1000000"),
    "step too soon": (
        changed("step", "planned", 1, "before", "start_s", to=0.002),
        "step.planned[1].before starts at 0.002 s, before the bucket is ready at 0.003 s",
    ),
    "step overlap": (
        changed("step", "planned", 0, "after", "end_s", to=0.014),
        "step.planned[1].after starts at 0.013 s, while the network still works on step.planned[0]",
    ),
    "step backwards": (
        changed("step", "planned", 0, "after", "end_s", to=0.01),
        "step.planned[0].after ends at 0.01 s, before it starts at 0.011 s",
    ),
    "step bound": (
        changed("step", "lower_bound_seconds", to=0.011),
        "step.seconds is 0.01, below step.lower_bound_seconds, 0.011",
    ),
    "step schedule": (
        changed("step", "planned", 0, "schedule", to={"kind": "ring"}),
        "step.planned[0].schedule differs from collectives[3].schedule, which calls of its 65536 bytes run",
    ),
    "no entries": (changed("collectives", to=[]), "collectives has 0 entries; at least 1 are needed"),
    "kind": (
        changed("collectives", 1, "schedule", "kind", to="bcast"),
        "collectives[1].schedule.kind is 'bcast'; it must be one of 'ring', 'halving_doubling', 'direct'",
    ),
    "no kind": (changed("collectives", 1, "schedule", "kind", to=...), "collectives[1].schedule.kind is missing"),
    "unknown role": (
        changed("collectives", 1, "schedule", "late", to="slow"),
        'collectives[1].schedule.late is "slow", which roles does not bind',
    ),
    "a role for any rank": (changed("roles", "any", to=1), 'roles binds "any", which stands for whichever rank'),
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
    "truncated": json.dumps(PLAN)[:-100],
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


def test_a_template_that_misses_a_rank_is_found_out(file: Path) -> None:
    template = schedules.template(RANKS)
    for table in ("send_peer", "send_age", "receive_peer", "receive_age"):
        for index, value in enumerate(getattr(template, table)):
            for wrong in (value - 1, value + 1):
                with pytest.raises(PlanError, match="template"):
                    load(file, sealed(changed("template", table, index, to=wrong)))
    first, second, *rest = sorted(template.steps, key=lambda step: -step.age)
    assert first.age > second.age > 0
    swapped = [first._replace(age=second.age), second._replace(age=first.age), *rest]
    consistent = Template.of_steps(RANKS, template.colours, swapped).to_json()
    with pytest.raises(PlanError, match=r"template: a chunk reaches|template: TemplateStep.* (brings|sends) a chunk"):
        load(file, sealed(changed("template", to=consistent)))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = [path for path in places(PLAN) if path]
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5, 6, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from([..., "straggler", "hybrid", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TEXT = plan.encode(validate(PLAN, "test")).encode()
CUTS = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 40), st.binary(max_size=20))


def spliced(cuts: list[tuple[int, int, bytes]]) -> bytes:
    data = TEXT
    for at, length, new in cuts:
        data = data[:at] + new + data[at + length :]
    return data


def resealed(changes: list[tuple[tuple[Any, ...], Any]]) -> bytes:
    """The bytes of a file with some values changed, and with the right hash if the changed plan is valid."""
    document = PLAN
    for path, value in changes:
        try:
            document = replaced(document, *path, to=value)
        except (KeyError, IndexError, TypeError):  # an earlier change removed this path
            continue
    try:
        claimed = validate(json.loads(json.dumps(document, default=str)), "fuzz").hash
    except PlanError:
        claimed = "0" * 64
    return json.dumps({**document, "hash": claimed}, default=str).encode()


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
