"""The sizes of the collectives in a training run, read from a profile's gradient buckets or from a saved run."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Final

from jaxcomm.cli.common import arguments
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import files, run_statistics
from jaxcomm.profile.run_file import decode

MOST: Final = 6  # maximum number of sizes that are taken from a training run
APART: Final = 1.5  # any two timed sizes differ by more than this factor


def sizes(text: str) -> list[int]:
    """Sizes in bytes. `text` is a list as in `arguments.sizes`, or a file: a profile or a saved training run."""
    if not os.path.isfile(text):
        return arguments.sizes(text)
    try:
        data = files.read_bytes(text)
        if run_statistics.sniff(data):
            found: dict[int, float] = {}
            for site in decode(data, text).sites:
                found[site.bytes] = found.get(site.bytes, 0.0) + site.bytes * site.calls
        else:
            buckets = [bucket.bytes for bucket in files.decode(data, text).buckets]
            found = {nbytes: float(nbytes * buckets.count(nbytes)) for nbytes in buckets}
            found[sum(buckets)] = float(sum(buckets))  # one call that sums all gradients
    except JaxcommError as error:
        raise ArgumentTypeError(str(error)) from None
    if kept := _apart({nbytes: moved for nbytes, moved in found.items() if nbytes >= 4}):
        return kept
    raise ArgumentTypeError(f"{text} has no gradient buckets and no sums; write for example 64KiB,16MiB")


def _apart(moved: Mapping[int, float]) -> list[int]:
    """The sizes whose calls move the most bytes. Any two of them differ by more than the factor `APART`."""
    kept: list[int] = []
    for nbytes in sorted(moved, key=lambda each: -moved[each]):
        if all(max(nbytes, other) > APART * min(nbytes, other) for other in kept):
            kept.append(nbytes)
    return sorted(kept[:MOST])
