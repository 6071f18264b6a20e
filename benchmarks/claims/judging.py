"""Verdicts: whether a claim's bound holds for the times that its commands measured."""

from __future__ import annotations

import datetime
from typing import Any, Literal, NamedTuple

from benchmarks.claims import ratios
from benchmarks.claims.model import Claim, ClaimError, Last
from benchmarks.claims.ratios import Estimate
from benchmarks.claims.running import Ran

OTHERS = 0.15  # share of the processors; more use by others spoils a comparison

Outcome = Literal["reproduced", "not reproduced", "not judged"]


class Verdict(NamedTuple):
    """The outcome, the reason, and the new figures if they are to be kept."""

    outcome: Outcome
    reason: str
    last: Last | None = None


def verdict(claim: Claim, ran: list[list[Ran]], commit: str, date: datetime.date) -> Verdict:
    """Compares the claim's bound with the times.

    A bound is broken if the whole interval exceeds it. If the value exceeds it but the interval includes it, there are
    too few times to decide.

    Raises:
      ClaimError: the times that the claim names are missing or too few.
    """
    if not claim.ours or claim.at_most is None:
        return Verdict("reproduced", "all commands succeeded", Last(date=date, commit=commit))
    ours = _times(claim, ran, claim.ours)
    peer = _times(claim, ran, claim.peer) if claim.peer else None
    try:
        found = ratios.ratio(ours, peer) if peer else ratios.median(ours)
    except ValueError as problem:
        raise ClaimError(f"{claim.claim}: {problem}.\n  Cure: more rounds in its command.") from None
    used = max(each.others for launches in ran for each in launches)
    if used > OTHERS:
        load = f"other load: others used {used:.0%} of the processors, more than {OTHERS:.0%}"
        return Verdict("not judged", f"{load}; {_words(found, claim)}")
    last = Last(
        date=date,
        commit=commit,
        ratio=found.value if peer else None,
        low=found.low,
        high=found.high,
        ours=ratios.median(ours).value,
        peer=ratios.median(peer).value if peer else None,
    )
    return Verdict(_outcome(found, claim.at_most), _words(found, claim), last)


def _outcome(found: Estimate, at_most: float) -> Outcome:
    if found.value <= at_most:
        return "reproduced"
    return "not reproduced" if found.low > at_most else "not judged"


def _words(found: Estimate, claim: Claim) -> str:
    unit = "" if claim.peer else " s"
    what = f"{claim.ours} / {claim.peer}" if claim.peer else claim.ours
    assert claim.at_most is not None
    words = f"{what} {found.value:.3g}{unit} ({found.low:.3g} to {found.high:.3g}), at most {claim.at_most:.3g}{unit}"
    too_few = found.value > claim.at_most >= found.low
    return f"{words}; the interval includes the bound: more rounds would decide" if too_few else words


def _times(claim: Claim, ran: list[list[Ran]], way: str) -> list[list[float]]:
    """The seconds of a way's turns in each launch, from the only measuring command that has this way."""
    found: list[list[list[float]]] = []
    for launches in ran:
        rows = [_row(claim, each.rows) for each in launches]
        if all(way in row["times"] for row in rows):
            found.append([row["times"][way] for row in rows])
    if len(found) != 1:
        known = sorted({name for launches in ran for each in launches for name in _row(claim, each.rows)["times"]})
        raise ClaimError(
            f"{len(found)} of the measuring commands have times of {way!r}; they have {', '.join(known)}.\n"
            "  Cure: name one of these in the claim."
        )
    return found[0]


def _row(claim: Claim, rows: list[dict[str, Any]]) -> dict[str, Any]:
    fitting = [row for row in rows if all(row.get(name) == value for name, value in claim.row.items())]
    if len(fitting) != 1:
        raise ClaimError(
            f"{len(fitting)} of the {len(rows)} rows of times have {claim.row or 'no conditions'}; one must.\n"
            "  Cure: mend `row` in the claim."
        )
    return fitting[0]
