"""Figures in pages: each is made from `benchmarks/claims.toml`, and each claim there has commands that can run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.claims import model, pages, texts
from benchmarks.claims.__main__ import minutes

ROOT = Path(__file__).parents[2]
DOCUMENT = model.load()
NUMBER = r"[0-9][0-9.]*"
FIGURE = rf"{NUMBER} ?(?:ms|µs|s|%|times)(?![\w/])"
COMPARISON = rf"{NUMBER} (?:times (?:as|faster|slower)|% (?:less|more|faster|slower|shorter|longer|of))"
GUIDES = sorted(f"docs/guides/{page.name}" for page in (ROOT / "docs" / "guides").glob("*.md"))
PROSE = [*(f"docs/{name}.md" for name in ("faq", "index", "install", "limits", "tutorial")), *GUIDES]

# Numbers that say what is set, drawn or decided, and no measured figure.
SET = {
    "README.md": ['width="100%"', "is 100 ms late"],
    "docs/guides/late_ranks.md": [
        "the same by 1.5 times as much or as little",
        "have taken 1.3 times as long, or as short",
    ],
    "docs/guides/plan.md": ["saves at least 2 % of the fastest", "calls take 1.2 times as long or as short"],
    "docs/guides/profile.md": ["no more than 5 % of its rounds"],
    "docs/guides/testbed.md": ["carries 95 % of them", "carry 97 to 100 % of links"],
}

each_claim = pytest.mark.parametrize("id", DOCUMENT.claims)


def prose(page: str) -> str:
    """A page's text on one line, without code and tables."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.split("\n") if not line.startswith(("    ", "|", "      "))]
    return re.sub(r"\s+", " ", " ".join(lines))


def without_quotes(page: str) -> str:
    """The same without the sentences that claims make, and without numbers that are set."""
    text = prose(page)
    for quote in DOCUMENT.quotes:
        if quote.page == page:
            text = pages.pattern(quote).sub("", text)
    for words in SET.get(page, []):
        assert words in text, f"{page} no longer says {words!r}: leave it out of SET"
        text = text.replace(words, "")
    return text


@pytest.mark.parametrize("page", pages.pages(DOCUMENT))
def test_page_has_the_figures_of_its_claims(page: str) -> None:
    text = (ROOT / page).read_text()
    assert pages.updated(DOCUMENT, page, text) == text, "make claims ARGS=--tables brings the pages up to date"


@pytest.mark.parametrize(("page", "figures"), [("README.md", FIGURE), *((page, COMPARISON) for page in PROSE)])
def test_page_quotes_no_figure_without_a_claim(page: str, figures: str) -> None:
    assert re.findall(f".{{0,50}}{figures}", without_quotes(page)) == []


@pytest.mark.parametrize("name", DOCUMENT.tables)
def test_table_has_no_figure_beside_those_of_claims(name: str) -> None:
    for _, *cells in DOCUMENT.tables[name].rows:  # the first one says of what
        for cell in cells:
            assert not re.search(FIGURE, texts.PLACEHOLDER.sub("", cell)), cell


def test_quoted_pages_are_those_of_the_claims() -> None:
    named = {page.partition("#")[0] for claim in DOCUMENT.claims.values() for page in claim.pages}
    assert {quote.page for quote in DOCUMENT.quotes} <= named
    assert all((ROOT / page).is_file() for page in named)


@each_claim
def test_claim_names_a_heading_that_explains_it(id: str) -> None:
    path, _, anchor = DOCUMENT.claims[id].pages[-1].partition("#")
    assert anchor in pages.headings(ROOT / path)


@each_claim
def test_claim_has_commands_of_files_that_exist(id: str) -> None:
    claim, made = DOCUMENT.claims[id], set[str]()
    for command in [*claim.commands, *claim.turns]:
        for path in re.findall(r"\b(?:benchmarks|jaxcomm/testbed)/[\w/]+\.\w+", command):
            assert (ROOT / path).is_file(), path
        written = set(re.findall(r"(?:> |--out |--report |-o )(\$OUT/\w+\.\w+)", command))
        assert set(re.findall(r"\$OUT/\w+\.\w+", command)) <= made | written, command
        made |= written


@each_claim
def test_measuring_script_writes_the_named_times(id: str) -> None:
    claim = DOCUMENT.claims[id]
    if claim.ours is None:
        return
    for command in claim.measuring:
        assert command.endswith("--out $TIMES")
        for script in re.findall(r"benchmarks/\w+\.py", command):
            assert re.search(r'"(--)?out"', (ROOT / script).read_text()), script


@each_claim
def test_chain_has_only_options_of_the_guides(id: str) -> None:
    guides = "".join((ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in ("profile", "plan", "testbed"))
    for command in DOCUMENT.claims[id].commands:
        if found := re.search(r"jaxcomm (profile|plan) (.*)", command):
            assert set(re.findall(r"--[a-z-]+", found[2])) <= set(re.findall(r"--[a-z-]+", guides)), command


def test_quick_set_has_chains_and_a_row_of_each_page() -> None:
    quick = {id: claim for id, claim in DOCUMENT.claims.items() if claim.quick}
    chains = {"late-host", "late-host-unlike-rails", "slow-host", "lost-rail", "racks-16mib", "rails-unlike-planned"}
    assert chains | {"like-hosts-tried-1mib"} <= set(quick)
    explained = {claim.pages[-1].partition("#")[0] for claim in quick.values()}
    assert {f"benchmarks/{name}.md" for name in ("README", "between_processes", "rails", "udp", "planner")} <= explained
    assert minutes(quick) <= 12
