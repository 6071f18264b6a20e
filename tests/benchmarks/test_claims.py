"""`make claims`: what it runs, how it compares and judges, and what it writes; with small commands."""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims import __main__ as command
from benchmarks.claims import judging, load, model, pages, ratios, running, texts
from benchmarks.claims.model import Claim, ClaimError, Document, Last, Quote, Table
from benchmarks.claims.running import Ran

TODAY = datetime.date(2026, 1, 2)
PAGES = ["benchmarks/rails.md#cuts"]


def claim(**fields: Any) -> Claim:
    usual = {
        "claim": "a sum",
        "pages": PAGES,
        "group": "host",
        "commands": ["program > $TIMES"],
        "ours": "plan",
        "peer": "none",
        "peer_name": "no plan",
        "at_most": 0.9,
        "seconds": 1,
    }
    return Claim.model_validate(usual | fields)


def without_times(**fields: Any) -> Claim:
    return claim(ours=None, peer=None, peer_name=None, at_most=None, **fields)


def writes(times: dict[str, list[float]], **of: Any) -> str:
    """A command that writes a row of these times."""
    return f"echo '{json.dumps({'rows': [{**of, 'times': times}]})}' > $TIMES"


def ran(ours: list[float], peer: list[float], others: float = 0.0) -> list[list[Ran]]:
    return [[Ran([{"times": {"plan": ours, "none": peer}}], others)]]


# Ratios.


def test_interval_has_the_ratio_as_often_as_it_says():
    drawn, inside = random.Random(0), 0
    for _ in range(200):
        ours, peer = ([drawn.lognormvariate(0, 0.1) for _ in range(15)] for _ in range(2))
        found = ratios.ratio([[0.8 * each for each in ours]], [peer])
        inside += found.low <= 0.8 <= found.high
    assert 180 <= inside <= 200


def test_ratio_is_that_of_each_launch_of_its_own():
    one, slower = [1.0, 1.1, 0.9, 1.0, 1.0], [10.0, 11.0, 9.0, 10.0, 10.0]
    found = ratios.ratio([[0.5 * each for each in side] for side in (one, slower)], [one, slower])
    assert found.value == pytest.approx(0.5)
    assert 0.4 < found.low < 0.5 < found.high < 0.65


def test_interval_covers_launches_that_differ():
    apart = ratios.ratio([[0.5] * 5, [0.9] * 5, [0.7] * 5], [[1.0] * 5] * 3)
    assert (apart.low, apart.value, apart.high) == pytest.approx((0.5, 0.7, 0.9))


def test_too_few_turns_have_no_interval():
    with pytest.raises(ValueError, match="4 turns; 5 are the fewest"):
        ratios.median([[1.0] * 5, [1.0] * 4])


# Verdicts.


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        ([0.80, 0.81, 0.82, 0.83, 0.84], "reproduced"),
        ([0.95, 0.96, 0.97, 0.98, 0.99], "not reproduced"),
        ([0.70, 0.75, 0.95, 0.99, 1.20], "not judged"),
    ],
    ids=["within the bound", "beyond it", "the interval includes it"],
)
def test_bound_is_broken_where_the_interval_is_beyond(ours: list[float], outcome: str) -> None:
    found = judging.verdict(claim(), ran(ours, [1.0] * 5), "abc", TODAY)
    assert found.outcome == outcome
    assert "at most 0.9" in found.reason and "plan / none" in found.reason
    assert found.last is not None and found.last.ratio == sorted(ours)[2]


def test_other_load_leaves_times_unjudged():
    found = judging.verdict(claim(), ran([0.5] * 5, [1.0] * 5, others=0.4), "abc", TODAY)
    assert (found.outcome, found.last) == ("not judged", None)
    assert "others used 40% of the processors, more than 15%; plan / none 0.5 (" in found.reason


def test_claim_without_times_holds_when_its_commands_succeed():
    found = judging.verdict(without_times(), [[Ran([], 0.9)]], "abc", TODAY)
    assert (found.outcome, found.last) == ("reproduced", Last(date=TODAY, commit="abc"))


def test_seconds_are_compared_where_there_is_no_peer():
    alone = claim(peer=None, peer_name=None, at_most=2.0)
    found = judging.verdict(alone, ran([1.5] * 5, [1.0] * 5), "abc", TODAY)
    assert found.last is not None
    assert (found.outcome, found.last.ours, found.last.ratio) == ("reproduced", 1.5, None)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"ours": "plans"}, "0 of the measuring commands have times of 'plans'; they have none, plan"),
        ({"row": {"bytes": 4}}, r"0 of the 1 rows of times have \{'bytes': 4\}; one must"),
    ],
)
def test_times_that_lack_the_claims_names_are_errors(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ClaimError, match=error):
        judging.verdict(claim(**fields), ran([1.0] * 5, [1.0] * 5), "abc", TODAY)


# Commands.


def test_commands_share_a_folder_and_run_once(tmp_path: Path) -> None:
    times = writes({"plan": [1.0], "none": [2.0]})
    both = claim(commands=["echo profile >> $OUT/profile", f"test -s $OUT/profile && {times}"])
    commands, said = running.Commands(tmp_path), list[str]()
    for _ in range(2):
        [[found]] = commands.run(both, said.append)
        assert found.rows == [{"times": {"plan": [1.0], "none": [2.0]}}]
    assert said == both.commands
    assert (tmp_path / "profile").read_text() == "profile\n"


def test_turns_run_by_launches_one_after_the_other(tmp_path: Path) -> None:
    turns = [f"echo {way} >> $OUT/order; {writes({way: [1.0, 2.0]})}" for way in ("plan", "none")]
    found = running.Commands(tmp_path).run(claim(commands=[], turns=turns, launches=2), lambda _: None)
    assert (tmp_path / "order").read_text().split() == ["plan", "none", "plan", "none"]
    assert [[list(each.rows[0]["times"]) for each in launches] for launches in found] == [
        [["plan"]] * 2,
        [["none"]] * 2,
    ]


def test_only_claims_beside_mpi_see_the_library_of_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPITRAMPOLINE_LIB", "libmpiwrapper.so")
    turns = ['echo \'{"rows": [{"library": "\'$MPITRAMPOLINE_LIB\'"}]}\' > $TIMES']
    for needs, library in (([], ""), (["mpiwrapper"], "libmpiwrapper.so")):
        ran = running.Commands(tmp_path).run(claim(commands=[], turns=turns, launches=1, needs=needs), lambda _: None)
        assert ran[0][0].rows == [{"library": library}]


def test_failed_command_is_an_error_with_its_output(tmp_path: Path) -> None:
    failing = claim(commands=["echo no such testbed >&2; exit 3; $TIMES"])
    commands = running.Commands(tmp_path)
    for _ in range(2):  # its failure is kept, too
        with pytest.raises(ClaimError, match=r"exit status 3: .*\nno such testbed\n"):
            commands.run(failing, lambda _: None)


def test_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    started = subprocess.Popen(["sleep 60 & wait"], shell=True, start_new_session=True)
    assert running._ended(started, 0.2) is None
    assert started.poll() is not None
    with pytest.raises(ProcessLookupError):
        for _ in range(200):  # until the child is reaped
            os.killpg(started.pid, 0)
            time.sleep(0.01)


def test_missing_needs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert running.missing(["root"]) == "it needs root and iproute2, for network namespaces"
    assert running.missing([]) is None


def proc(folder: Path, busy: int, kernel: int) -> Path:
    """A made-up /proc: ticks of all, and of the kernel's threads."""
    (folder / "7").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"cpu {busy} 0 0 500 0 9000 9000 0 0 0\ncpu0 0\n")
    (folder / "7" / "stat").write_text(f"7 (k (x) y) S 2 0 0 0 0 0 0 0 0 0 {kernel} 0 0 0\n")
    return folder


def test_load_is_what_neither_we_nor_the_kernel_used(tmp_path: Path) -> None:
    tick = load.TICK_S
    before = load.used(proc(tmp_path, 1000, 100))
    after = load.used(proc(tmp_path, 1400, 200))._replace(at=before.at + 1000 * tick, own=before.own + 100 * tick)
    assert load.others(before, after, processors=2) == pytest.approx(0.1)


# The file.


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"commands": []}, "it has no command"),
        ({"at_most": None}, "times need `ours` and `at_most`"),
        ({"peer_name": None}, "`peer` needs `peer_name`"),
        ({"commands": ["program"]}, "no measuring command writes \\$TIMES"),
        ({"needs": ["luck"]}, "needs"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_claims_that_cannot_be_judged_are_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        claim(**fields)


FILE = """\
# A remark.

[claims.one]
claim = "a sum"
pages = ["benchmarks/rails.md#cuts"]
group = "host"
commands = [
  '''COMMAND''',
]
ours = "plan"
peer = "none"
peer_name = "no plan"
at_most = 0.9
seconds = 1

# Another remark.

[claims.two]
claim = "another"
pages = ["benchmarks/rails.md#cuts"]
group = "planner"
commands = ["false"]
quick = true
seconds = 1
last = {date = 2020-01-01}
"""


def test_new_figures_replace_the_last_line_only():
    new = Last(date=TODAY, commit="abc", ratio=0.51234567, low=0.5, high=0.52, ours=12345.6)
    found = model.with_last(FILE, {"one": new, "two": Last(date=TODAY, commit="d")})
    line = 'last = {date = 2026-01-02, commit = "abc", ratio = 0.5123, low = 0.5, high = 0.52, ours = 12346}'
    assert found == FILE.replace("seconds = 1\n", f"seconds = 1\n{line}\n", 1).replace(
        "{date = 2020-01-01}", '{date = 2026-01-02, commit = "d"}'
    )


def test_names_select_groups_and_claims(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(FILE.replace("COMMAND", "$TIMES"))
    document = model.load(path)
    assert list(model.selected(document, [], quick=False)) == ["one", "two"]
    assert list(model.selected(document, ["planner"], quick=False)) == ["two"]
    assert list(model.selected(document, ["one"], quick=False)) == ["one"]
    assert list(model.selected(document, [], quick=True)) == ["two"]
    with pytest.raises(ClaimError, match="'racks' is neither a group nor the id of a claim"):
        model.selected(document, ["racks"], quick=False)


# Figures in words.


def document(**claims: Last) -> Document:
    named = {id.replace("_", "-"): claim(last=last) for id, last in claims.items()}
    return Document(claims=named, tables={"gains": Table(head=["a", "b"], rows=[["one host", "{a-*.times} times"]])})


DOCUMENT = document(
    a_small=Last(date=TODAY, ratio=1 / 15.6, ours=249e-6, peer=3.9e-3),
    a_large=Last(date=TODAY, ratio=1 / 1.46, ours=168e-3, peer=0.244),
    b=Last(date=TODAY, ratio=0.77, low=0.75, high=0.8, ours=0.162, peer=0.21),
)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{a-*.times} times", "1.5 to 16 times"),
        ("{b.less} less", "23 % less"),
        ("{b.share} of it", "130 % of it"),
        ("{b.ratio}", "0.77"),
        ("{a-*.ours}", "249 µs to 168 ms"),
        ("{a-large,b.ours}", "162 to 168 ms"),
        ("{b.ours} in place of {b.peer}", "162 ms in place of 210 ms"),
    ],
)
def test_templates_are_filled_with_figures(template: str, words: str) -> None:
    assert texts.filled(template, DOCUMENT.claims) == words


@pytest.mark.parametrize("template", ["{c.times}", "{b.speed}"])
def test_templates_without_a_figure_are_errors(template: str) -> None:
    with pytest.raises(ClaimError, match="names no claim or no figure"):
        texts.filled(template, DOCUMENT.claims)


def test_quoted_claim_without_figures_is_an_error():
    with pytest.raises(ClaimError, match="the claim c has no figures"):
        texts.filled("{c.ratio}", {"c": claim()})


def test_page_gets_the_tables_between_its_markers():
    text = "Before.\n\n<!-- claims: gains -->\nold\n<!-- end of claims -->\n\nAfter.\n"
    found = pages.updated(DOCUMENT, "README.md", text)
    table = "| a | b |\n|---|---|\n| one host | 1.5 to 16 times |\n"
    assert found == text.replace("old\n", table)
    assert pages.updated(DOCUMENT, "README.md", found) == found
    with pytest.raises(ClaimError, match="there is no table 'losses'"):
        pages.updated(DOCUMENT, "README.md", text.replace("gains", "losses"))


def test_quote_gets_new_figures_and_keeps_its_lines():
    quoting = DOCUMENT.model_copy(update={"quotes": [Quote(page="p.md", text="takes {b.ours}, not {b.peer}, and")]})
    text = "A sum takes 99\nms,\nnot 210\nms, and more.\n"
    assert pages.updated(quoting, "p.md", text) == "A sum takes 162 ms,\nnot 210\nms, and more.\n"
    with pytest.raises(ClaimError, match=r"p\.md has 0 sentences"):
        pages.updated(quoting, "p.md", "A sum takes long.")


# The command.


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two claims, the second of which fails."""
    monkeypatch.setattr(command, "OUT", tmp_path / "out")
    monkeypatch.setattr(load, "others", lambda *_: 0.0)
    (tmp_path / "claims.toml").write_text(
        FILE.replace("COMMAND", writes({"plan": [0.5] * 5, "none": [1.0] * 5}))
        + '\n[[quotes]]\npage = "README.md"\ntext = "is {one.times} times as fast"\n'
    )
    (tmp_path / "README.md").write_text("It is 9 times as fast.\n")
    return tmp_path


def make_claims(root: Path, *words: str) -> int:
    return command.main([*words], root / "claims.toml", root)


def test_rerun_keeps_figures_and_updates_pages(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_claims(root, "one", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["one"]["outcome"], found["one"]["last"]["ratio"]) == ("reproduced", 0.5)
    kept = model.load(root / "claims.toml").claims["one"].last
    assert kept is not None and kept.commit and kept.date == datetime.date.today()
    assert (root / "README.md").read_text() == "It is 2.0 times as fast.\n"


def test_claim_that_is_not_reproduced_fails_the_rerun(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_claims(root) == 1
    shown = capsys.readouterr().out
    assert "[1 of 2] one: a sum" in shown and "[2 of 2] two: another" in shown
    assert "1 reproduced, 1 not reproduced" in shown and "exit status 1: false" in shown


def test_list_and_dry_run_start_no_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_claims(root, "--list") == make_claims(root, "--dry-run", "--quick") == 0
    shown = capsys.readouterr().out
    assert "never" in shown and "2020-01-01 not rerun" in shown and "# two: another\nfalse\n" in shown
    assert not (root / "out").exists()
    assert make_claims(root, "racks") == 2


def test_module_runs_from_the_repository() -> None:
    listed = [sys.executable, "-m", "benchmarks.claims", "--list", "--quick"]
    found = subprocess.run(listed, cwd=model.ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "late-host-unlike-rails " in found.stdout
