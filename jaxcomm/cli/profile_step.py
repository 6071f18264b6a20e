"""`jaxcomm profile step`: measures when in a training step each gradient is ready."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from jaxcomm import files, profile
from jaxcomm.cli.common import functions, options, output, progress
from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.errors import JaxcommError
from jaxcomm.measure import measure_gradients
from jaxcomm.profile import Bucket
from jaxcomm.report.tables import bytes_text, seconds_text, table

EXAMPLE = """
    jaxcomm profile step train.py:example     # def example(): return loss, params, batch
    jaxcomm profile step mine.text:example --profile profile.json --steps 50
"""
_SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "example",
        metavar="FUNCTION",
        help="path/file.py:function or module:function; called without arguments, returns (loss, params, *args), where "
        "loss(params, *args) is a rank's loss",
    )
    parser.add_argument("--profile", default="profile.json", help="the profile to complete (profile.json)")
    parser.add_argument("--out", help="the profile to write (the same file)")
    parser.add_argument("--devices", type=int, help="host devices that work at once (the profile's ranks)")
    parser.add_argument("--steps", type=int, default=20, help="steps to take the median of (20)")
    parser.add_argument("--axis", default="data", help="the mesh axis that the loss may use (data)")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Measures the gradients, writes them into the profile, and prints the table."""
    before = profile.load(args.profile)
    out = args.out or args.profile
    files.check_writable(out)
    devices = args.devices or before.ranks
    use_host_devices(devices)
    loss, params, *operands = _example(args.example)
    with progress.clock(f"measuring {args.steps} steps on {devices} devices"):
        buckets = measure_gradients(loss, params, *operands, devices=devices, steps=args.steps, axis_name=args.axis)
    found = profile.with_gradients(before, buckets, f"{args.example} on {devices} host devices")
    profile.save(found, out)
    if args.json:
        output.print_json("profile", {"profile": found.model_dump()})
    else:
        print(_table(buckets))
        print(f"\nProfile: {out}; next: jaxcomm plan {out}")
    return 0


def _example(name: str) -> tuple[Any, ...]:
    example = functions.function(name)()
    if not isinstance(example, tuple) or len(example) < 2 or not callable(example[0]):
        problem, cure = f"returned {files.short(example)}, not (loss, params, *args)", "return such a tuple"
        raise JaxcommError(files.mistake(name, problem, cure))
    return example


def _table(buckets: list[Bucket]) -> str:
    rows = [[bucket.name, bytes_text(bucket.bytes), seconds_text(bucket.ready_s)] for bucket in buckets]
    if len(rows) > _SHOWN:
        half = _SHOWN // 2
        rows = [*rows[:half], [f"… {len(rows) - _SHOWN} more …", "", ""], *rows[-half:]]
    total = sum(bucket.bytes for bucket in buckets)
    rows.append([f"{len(buckets)} gradients", bytes_text(total), ""])
    return table(["gradient", "bytes", "ready"], rows)
