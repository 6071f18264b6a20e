"""`jaxcomm check`: checks which parts work on this machine, and how fast. Turns on the GPU parts that pass."""

from __future__ import annotations

import datetime
import importlib
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from jaxcomm import files
from jaxcomm.cli.common import options, output, progress
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import table

EXAMPLE = """
    jaxcomm check                    # GPUs; twenty minutes at most; psum over GPUs then uses the parts that pass
    jaxcomm check --report gpus.json # the same, with all results in a file
    jaxcomm check --cpu              # the CPU core, on host devices; a minute
    jaxcomm check --cpu --only collectives   # jaxcomm or Gloo between CPU processes?
    jaxcomm check --fabric --report fabric.json   # the fabrics of libfabric, between two processes of this machine
    jaxcomm check --dry-run
    jaxcomm check --only devices --json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--cpu", action="store_true", help="check the CPU core instead of GPUs; it needs no certificate")
    what.add_argument("--fabric", action="store_true", help="try the fabrics of libfabric instead, as rails")
    parser.add_argument("--only", metavar="SECTION", help="run one section; --dry-run lists them")
    parser.add_argument("--dry-run", action="store_true", help="say which sections would run, and run none")
    parser.add_argument("--report", metavar="FILE", help="also write the results, or the list of a dry run, as JSON")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Runs the selected sections. Raises an error after the last section if any section failed."""
    kind = importlib.import_module(f"jaxcomm.cli.check_{'cpu' if args.cpu else 'fabric' if args.fabric else 'gpu'}")
    names = [*kind.SECTIONS] if args.only is None else [args.only]
    if args.only is not None and args.only not in kind.SECTIONS:
        raise JaxcommError(f"--only is {args.only!r}, not a section.\n  Cure: one of {', '.join(kind.SECTIONS)}.")
    files.check_writable(args.report)
    if args.dry_run:
        rows = {name: {"shows": kind.SECTIONS[name], "left_out": kind.lacks(name)} for name in names}
        if args.report is not None:
            output.write_json(args.report, "check-dry-run", {"sections": rows})
        if args.json:
            output.print_json("check-dry-run", {"sections": rows})
        else:
            for name, row in rows.items():
                reason = row["left_out"]
                print(f"{name}: {row['shows']}: {f'would not run: {reason}' if reason else 'would run'}")
        return 0
    if off := kind.why_off():
        raise JaxcommError(off)
    results: dict[str, Any] = {}
    begun = time.monotonic()
    if not args.json and (known := kind.known()):
        print(f"{known}\n", flush=True)
    with progress.Bar(len(names), "checking") as bar:
        for name in names:
            bar.set_description(f"checking {name}")
            results[name] = kind.run(name, time.monotonic() - begun)
            results[name]["when"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            kind.keep({name: results[name]})
            if args.report is not None:
                output.write_json(args.report, "check", {"sections": results, **kind.about()})
            if not args.json:
                print(f"{_text(name, kind.SECTIONS[name], results[name])}\n", flush=True)
            bar.update()
    if args.json:
        output.print_json("check", {"sections": results, **kind.about()})
    else:
        print(kind.summary())
    bad = [name for name, result in results.items() if result["state"].startswith(("failed", "stopped"))]
    if bad:
        raise JaxcommError(f"{len(bad)} of {len(results)} sections failed: {', '.join(bad)}.")
    return 0


def _text(name: str, shows: str, result: dict[str, Any]) -> str:
    head = f"{name}: {shows}\n{result['state']}, {result['seconds']} s"
    if not result["rows"]:
        return head
    width = max(map(len, result["rows"]))
    first, *rest = [[*map(str, row), *[""] * (width - len(row))] for row in result["rows"]]
    return f"{head}\n{table(first, rest)}"
