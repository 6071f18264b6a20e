"""The tables and sentences of pages that quote claims, made from the claims' last figures.

A table stands between the lines `<!-- claims: NAME -->` and `<!-- end of claims -->`. The table `summary` has a row for
every claim; the file of claims defines the other tables. It also defines the quotes: sentences of pages in which only
the figures are replaced.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from benchmarks.claims import texts
from benchmarks.claims.model import ROOT, Claim, ClaimError, Document, Last, Quote
from jaxcomm import files

_TABLE = re.compile(r"(?<=<!-- claims: )([a-z-]+)( -->\n).*?(?=<!-- end of claims -->)", re.DOTALL)
_FIGURE = r"[0-9][0-9.]*(?:\s(?:s|ms|µs|ns|%))?(?:\sto\s[0-9][0-9.]*(?:\s(?:s|ms|µs|ns|%))?)?"
SUMMARY = "summary"


def write(document: Document, root: Path = ROOT) -> list[str]:
    """Brings all pages up to date. Returns the names of the changed pages."""
    changed = []
    for name in pages(document, root):
        path = root / name
        text = path.read_text()
        new = updated(document, name, text)
        if new != text:
            files.write(path, new, ClaimError)
            changed.append(name)
    return changed


def pages(document: Document, root: Path = ROOT) -> list[str]:
    """The paths of the pages with tables or quotes, relative to the repository's root."""
    quoting = {quote.page for quote in document.quotes}
    tables = {str(path.relative_to(root)) for path in markdown(root) if _TABLE.search(path.read_text())}
    return sorted(quoting | tables)


def markdown(root: Path = ROOT) -> list[Path]:
    """All pages that may have tables."""
    return [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").rglob("*.md")]


def updated(document: Document, name: str, text: str) -> str:
    """A page's text, with tables and quotes made from the claims' last figures.

    Raises:
      ClaimError: the page has a table that the file of claims lacks, or lacks a quote.
    """

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{table(document, found[1], name)}\n"

    text = _TABLE.sub(made, text)
    for quote in document.quotes:
        if quote.page == name:
            text = _quoted(document, quote, text)
    return text


def table(document: Document, name: str, page: str) -> str:
    """A table in Markdown."""
    if name == SUMMARY:
        head = ["what", "jaxcomm", "beside it", "jaxcomm / it", "at most", "measured", "where"]
        rows = [_summary(claim, page) for claim in document.claims.values()]
    elif name in document.tables:
        head = document.tables[name].head
        rows = [[texts.filled(cell, document.claims) for cell in row] for row in document.tables[name].rows]
    else:
        raise ClaimError(f"{page}: there is no table {name!r}.\n  Cure: write [tables.{name}] into the file of claims.")
    return "\n".join(_line(row) for row in [head, ["---"] * len(head), *rows])


def _summary(claim: Claim, page: str) -> list[str]:
    last, link = claim.last, _link(claim.pages[-1], page)
    if last is None:
        return [claim.claim, "–", claim.peer_name or "–", "not measured", _bound(claim), "–", link]
    words = texts.fields()
    measured = f"{last.date}" if last.commit else f"{last.date}, not rerun"
    if claim.ours is None:
        return [claim.claim, "the command succeeds", "–", "–", "–", measured, link]
    ours = words["ours"](last) if last.ours is not None else "–"
    peer = f"{claim.peer_name} {words['peer'](last)}" if last.peer is not None else claim.peer_name or "–"
    return [claim.claim, ours, peer, _ratio(last) if claim.peer else "–", _bound(claim), measured, link]


def _ratio(last: Last) -> str:
    assert last.ratio is not None
    known = last.low is not None and last.high is not None
    interval = f" ({texts.ratio(last.low)} to {texts.ratio(last.high)})" if known else ""
    return f"{texts.ratio(last.ratio)}{interval}"


def _bound(claim: Claim) -> str:
    if claim.at_most is None:
        return "–"
    return f"{claim.at_most:g}" if claim.peer else f"{claim.at_most:g} s"


def _link(target: str, page: str) -> str:
    """A link to a heading of a page from another page."""
    path, _, anchor = target.partition("#")
    titles = headings(ROOT / path)
    if anchor not in titles:
        raise ClaimError(f"{path} has no heading {anchor!r}.\n  Cure: end the claim's pages with one of its headings.")
    return f"[{titles[anchor]}]({'' if path == page else os.path.relpath(path, Path(page).parent)}#{anchor})"


def headings(page: Path) -> dict[str, str]:
    """The titles of a page's headings by their anchors."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): title for title in titles}


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"


def _quoted(document: Document, quote: Quote, text: str) -> str:
    """The page's text with the quote's new figures."""
    found = list(pattern(quote).finditer(text))
    if len(found) != 1:
        raise ClaimError(
            f"{quote.page} has {len(found)} sentences {quote.text!r}; it must have one.\n"
            "  Cure: bring `quotes` in the file of claims and the page together."
        )
    new = found[0][0]
    for place, name in reversed(list(enumerate(texts.PLACEHOLDER.finditer(quote.text), start=1))):
        low, high = (end - found[0].start() for end in found[0].span(place))
        figure = texts.figure(name[1], name[2], document.claims)
        if new[low:high].split() != figure.split():  # an unchanged figure keeps its line breaks
            new = new[:low] + figure + new[high:]
    return text[: found[0].start()] + new + text[found[0].end() :]


def pattern(quote: Quote) -> re.Pattern[str]:
    """Matches a quote in a page, with any figures and line breaks. Each figure is a group of the pattern."""
    parts = texts.PLACEHOLDER.split(quote.text)[::3]  # without the names and fields
    return re.compile(f"({_FIGURE})".join(r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in parts))
