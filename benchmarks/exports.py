"""The share of several clusters' plans that the formats of `jaxcomm export` can hold, and the errors for the rest.

    python benchmarks/exports.py

The profiles are made up. "scratch" is MSCCL++'s scratch memory relative to the buffer: the range over a plan's files.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from itertools import product
from pathlib import Path

from planning import made

from jaxcomm import plan, profile
from jaxcomm.cli import main as jaxcomm
from jaxcomm.errors import PlanError
from jaxcomm.plan import exporters
from jaxcomm.report.tables import table

RANKS = (8, 16, 32, 64, 128)
KINDS = ("alike", "one late", "hosts of 8", "hosts of 8, one late")


def planned(ranks: int, kind: str, folder: Path) -> Path:
    """Writes the plan for a cluster. Links between hosts take four times as long as links within a host."""
    fields = {"topology": {"hosts": [rank // 8 for rank in range(ranks)], "nic": "rank", "slow": 4.0}}
    late = {3: 0.02} if "late" in kind else {}
    source, target = folder / "profile.json", folder / f"{ranks} {kind}.json"
    profile.save(made(ranks, late, **(fields if "hosts" in kind else {})), source)
    with contextlib.redirect_stdout(sys.stderr):
        jaxcomm(["plan", str(source), "--out", str(target)])
    return target


def main() -> None:
    """Exports and prints."""
    rows, reasons = [], []
    with tempfile.TemporaryDirectory() as name:
        for ranks, kind in ((ranks, kind) for ranks in RANKS for kind in KINDS if ranks > 8 or "hosts" not in kind):
            loaded = plan.load(planned(ranks, kind, Path(name)))
            entries = len(loaded.collectives)
            texts: dict[str, list[str]] = {form: [] for form in exporters.FORMATS}
            for form, index in product(texts, range(entries)):
                try:
                    texts[form].append(exporters.export(loaded, index, exporters.FORMATS[form]).text)
                except PlanError as error:
                    reasons.append(f"{ranks} ranks, {kind}, {form}: {str(error).splitlines()[0]}")
            counts = [f"{len(some)} of {entries}" for some in texts.values()]
            gpus = [json.loads(text)["gpus"] for text in texts["mscclpp"]]
            scratch = sorted(max(gpu["scratch_chunks"] / gpu["input_chunks"] for gpu in each) for each in gpus)
            channels = sorted(int(re.findall(r'nchannels="(\d+)"', text)[0]) for text in texts["msccl-xml"])
            few = [f"{scratch[0]:.2f}–{scratch[-1]:.2f}", f"{channels[0]}–{channels[-1]}"]
            rows.append([f"{ranks} ranks, {kind}", counts[0], few[0], counts[1], few[1]])
            print(rows[-1], file=sys.stderr)
    print(table(["cluster, made up", "MSCCL++", "scratch", "MSCCL", "channels"], rows))
    print("\n".join(reasons))


if __name__ == "__main__":
    main()
