"""`jaxcomm export`: writes a plan as files of another executor, one file for each byte range."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from jaxcomm import files, plan
from jaxcomm.cli.common import options, output, progress
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.plan import exporters
from jaxcomm.report.tables import bytes_text

EXAMPLE = """
    jaxcomm export plan.json --to mscclpp --out exported
    jaxcomm export plan.json --to msccl-xml --size 16MiB --out allreduce.xml
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.description = textwrap.fill(
        f"{parser.description} Files sum in place among this plan's ranks, with a fixed late rank. Not exported: "
        "element types, predictions, and decisions other than schedules, such as groups, rails or a drop policy. "
        "Entries that the format cannot hold are left out with a message; if none is left, the exit code is 1. "
        "MSCCL++ takes sizes that are multiples of chunks × 16 bytes, among GPUs that reach each other's memory; MSCCL "
        "takes numbers of elements "
        "that are multiples of the chunks of all instances.",
        width=100,
    )
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("--to", required=True, choices=exporters.FORMATS, help="the format")
    options.size(parser, "only the byte range of this size (all)")
    parser.add_argument(
        "--out", default="exported", help="the folder to write to, or with --size also a file .json or .xml (exported)"
    )
    parser.add_argument("--dry-run", action="store_true", help="export and show, write nothing")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Exports the plan's ranges of buffer sizes, a file for each. Prints the files' names and the omitted ranges."""
    with progress.clock(f"reading and proving {args.plan}"):
        loaded = plan.load(args.plan)
    form, out = exporters.FORMATS[args.to], Path(args.out)
    entries = range(len(loaded.collectives))
    if args.size:
        index = max(i for i in entries if loaded.collectives[i].min_bytes <= args.size)
        entries = range(index, index + 1)
    one = out.suffix in (".json", ".xml")
    if one and (out.suffix != form.suffix or not args.size):
        raise JaxcommError(
            f"--out is {out}, a file; --to {args.to} writes one file {form.suffix} per byte range.\n"
            f"  Cure: name a folder, or one range with --size and a file that ends in {form.suffix}."
        )
    written: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for index in entries:
        entry, schedule = loaded.collectives[index], loaded.schedules[index]
        row = {
            "min_bytes": entry.min_bytes,
            "max_bytes": entry.max_bytes,
            "schedule": schedule.kind,
            "chunks": schedule.num_chunks,
            "late": schedule.late,
            "without_selector": entry.selector is not None,
        }
        try:
            made = exporters.export(loaded, index, form)
        except PlanError as error:
            left_out.append({**row, "reason": str(error)})
            continue
        file = out if one else out / f"allreduce-{exporters.range_name(loaded, index)}{form.suffix}"
        if not args.dry_run:
            files.make_folder(file.parent)
            files.write(file, made.text)
        written.append({**row, "min_bytes": made.min_bytes, "max_bytes": made.max_bytes, "file": str(file)})
    if args.json:
        output.print_json("export", {"to": args.to, "plan": loaded.hash, "files": written, "left_out": left_out})
    else:
        _show(args, written, left_out)
    if not written:
        ranges = f"{len(left_out)} byte range{'s' * (len(left_out) != 1)}"
        raise JaxcommError(f"{args.to} can hold none of the plan's {ranges}.\n  Cure: see the message about each.")
    return 0


def _show(args: Namespace, written: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
    for row in written:
        verb = "would write" if args.dry_run else "wrote"
        late = "" if row["late"] is None else f", rank {row['late']} late"
        selector = ", without the schedules that calls select from" if row["without_selector"] else ""
        print(f"{verb}  {row['file']}: {_range(row)}, {row['schedule']}, {row['chunks']} chunks{late}{selector}")
    for row in left_out:
        print(f"left out  {_range(row)}: {row['reason']}")


def _range(row: dict[str, Any]) -> str:
    low, high = row["min_bytes"], row["max_bytes"]
    return f"from {bytes_text(low)}" if high is None else f"{bytes_text(low)} to {bytes_text(high)}"
