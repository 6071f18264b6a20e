"""Reruns claims: `make claims`, or `python -m benchmarks.claims [NAME ...]` in the repository's root.

    make claims                       # all of them
    make claims ARGS="hosts"          # a group, or the id of a claim
    make claims ARGS=--quick          # the chains and a row of each page
    make claims ARGS=--list

Needs a machine without other load; claims between hosts need root. A claim's commands run one after the other. A
command that several claims share runs once. Afterwards `benchmarks/claims.toml` has the new figures, and the pages are
updated from it. The exit status is 1 if a claim was not reproduced.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.claims import judging, model, pages, running
from benchmarks.claims.judging import Verdict
from benchmarks.claims.model import FILE, ROOT, Claim, ClaimError
from jaxcomm import files
from jaxcomm.report.tables import table

OUT = ROOT / "build" / "claims"


def main(words: list[str] | None = None, file: Path = FILE, root: Path = ROOT) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="groups or ids of claims; without any, all")
    parser.add_argument("--quick", action="store_true", help="only the chains and a row of each page")
    parser.add_argument("--list", action="store_true", help="show the claims and their last figures")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument("--tables", action="store_true", help="only bring the pages up to date")
    parser.add_argument("--json", action="store_true", help="print the outcomes as one JSON object")
    args = parser.parse_args(words)
    try:
        document = model.load(file)
        chosen = model.selected(document, args.names, quick=args.quick)
        if args.list:
            print(_listed(chosen))
        elif args.dry_run:
            print(_dry(chosen))
        elif args.tables:
            print("\n".join(pages.write(document, root)) or "all pages are up to date")
        else:
            return _rerun(chosen, file, root, as_json=args.json)
    except ClaimError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


def _rerun(chosen: dict[str, Claim], file: Path, root: Path, *, as_json: bool) -> int:
    out = sys.stderr if as_json else sys.stdout
    OUT.mkdir(parents=True, exist_ok=True)
    commands, commit, verdicts = running.Commands(OUT), _commit(), dict[str, Verdict]()
    print(f"{len(chosen)} claims, about {minutes(chosen)} minutes", file=out, flush=True)
    for number, (id, claim) in enumerate(chosen.items(), start=1):
        begun = time.monotonic()
        print(f"[{number} of {len(chosen)}] {id}: {claim.claim}", file=out, flush=True)
        verdicts[id] = _judged(claim, commands, commit, lambda command: print(f"  $ {command}", file=out, flush=True))
        outcome, reason, last = verdicts[id]
        print(f"  {outcome} after {time.monotonic() - begun:.0f} s: {reason}", file=out, flush=True)
        if last:
            files.write(file, model.with_last(file.read_text(), {id: last}), ClaimError)
    changed = pages.write(model.load(file), root)
    if changed:
        print(f"brought up to date: {', '.join(changed)}", file=out)
    counts = Counter(each.outcome for each in verdicts.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), file=out)
    if as_json:
        print(json.dumps({id: _document(each) for id, each in verdicts.items()}, indent=1))
    return 1 if counts["not reproduced"] else 0


def _judged(claim: Claim, commands: running.Commands, commit: str, say: running.Say) -> Verdict:
    lacks = running.missing(claim.needs)
    if lacks:
        return Verdict("not judged", lacks)
    try:
        return judging.verdict(claim, commands.run(claim, say), commit, datetime.date.today())
    except ClaimError as problem:
        return Verdict("not reproduced", str(problem))


def _document(verdict: Verdict) -> dict[str, object]:
    last = verdict.last.model_dump(mode="json", exclude_none=True) if verdict.last else None
    return {"outcome": verdict.outcome, "reason": verdict.reason, "last": last}


def _commit() -> str:
    """The checkout's commit, with a + if the checkout has changes other than those that a rerun makes."""
    made = [str(FILE.relative_to(ROOT)), *pages.pages(model.load())]
    status = ["git", "status", "--porcelain", "--", ".", *(f":(exclude){each}" for each in made)]
    try:
        hash = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, check=True)
        changes = subprocess.run(status, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise ClaimError(
            f"figures need the commit of their code, and {ROOT} is not a checkout of git.\n  Cure: run in a checkout."
        ) from None
    return hash.stdout.decode().strip() + "+" * bool(changes.stdout)


def minutes(chosen: dict[str, Claim]) -> int:
    """The minutes that all commands take. Claims with the same commands count once."""
    seconds = {(*claim.commands, *claim.turns): claim.seconds for claim in chosen.values()}
    return -(-sum(seconds.values()) // 60)


def _listed(chosen: dict[str, Claim]) -> str:
    rows = []
    for id, claim in chosen.items():
        last = claim.last
        value = (last.ratio if claim.peer else last.ours) if last else None
        holds = "-" if value is None or claim.at_most is None else "yes" if value <= claim.at_most else "no"
        measured = "never" if last is None else f"{last.date} {last.commit or 'not rerun'}"
        quick = "yes" if claim.quick else "no"
        rows.append([id, claim.group, quick, claim.seconds, claim.at_most, value and f"{value:.3g}", holds, measured])
    return table(["claim", "group", "quick", "seconds", "at most", "last", "holds", "measured"], rows)


def _dry(chosen: dict[str, Claim]) -> str:
    lines = [f"OUT={OUT}; TIMES={OUT}/times.json; export OUT TIMES"]
    for id, claim in chosen.items():
        repeated = f", {claim.launches} launches by turns" if claim.launches > 1 else ""
        lines += [f"# {id}: {claim.claim}{repeated}", *claim.commands, *claim.turns]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
