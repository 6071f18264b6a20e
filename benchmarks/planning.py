"""Time of `jaxcomm plan` from start to end, as a separate process, for clusters of several kinds.

    python benchmarks/planning.py

The profiles are made up; only their size matters here. Medians of five runs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import turns

from jaxcomm import profile
from jaxcomm.report.tables import seconds_text, table

RUNS = 5
MIB = 2**20


def made(ranks: int, late: dict[int, float], **fields: Any) -> profile.Profile:
    """A profile in which these ranks are late by these seconds in every step."""
    document = {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": ranks,
        "link": {"alpha_s": 3e-6, "beta_s_per_byte": 1e-11, "source": "made up"},
        "arrivals": [[late.get(rank, 0.0) for rank in range(ranks)]] * 20,
        "provenance": {"source": "made up", "tool": "benchmarks/planning.py"},
    }
    return profile.validate(document | fields, "benchmarks/planning.py")


def gradients(count: int, nbytes: int) -> list[dict[str, Any]]:
    """Gradients that become ready one after the other within 30 ms."""
    return [{"name": f"layer {i}", "bytes": nbytes + 64 * (i % 40), "ready_s": 0.03 * i / count} for i in range(count)]


def rail(name: str, start_s: float, bytes_per_s: float) -> dict[str, Any]:
    """A rail with samples at powers of four bytes."""
    sizes = [4**i for i in range(5, 14)]
    latency = [{"bytes": size, "seconds": start_s + size / bytes_per_s} for size in sizes]
    return {"name": name, "transport": "tcp", "latency": latency, "slowdown": 1.1}


RAILS = [rail("eth0", 3e-5, 1e9), rail("eth1", 3e-5, 1e9), rail("ib0", 5e-6, 4e9)]
RACKS = [
    {"name": f"rack {i}", "ranks": list(range(32 * i, 32 * i + 32)), "uplink": 4.0 if i < 2 else 2.0} for i in range(32)
]
CASES = {
    "8 ranks, one late, 20 gradients, 3 rails": made(8, {3: 0.02}, buckets=gradients(20, 4 * MIB), rails=RAILS),
    "8 ranks, one late, 300 gradients": made(8, {3: 0.02}, buckets=gradients(300, MIB)),
    "8 ranks on 2 hosts, one late": made(
        8, {3: 0.02}, topology={"hosts": [0] * 4 + [1] * 4, "nic": "host", "slow": 4.0}
    ),
    **{
        f"128 ranks on 16 hosts, a NIC per {nic}, one late": made(
            128, {127: 0.02}, topology={"hosts": [rank // 8 for rank in range(128)], "nic": nic, "slow": 4.0}
        )
        for nic in ("rank", "host")
    },
    "256 ranks, one late": made(256, {17: 0.02}),
    "1024 ranks, one late": made(1024, {17: 0.02}),
    "1024 ranks in 32 racks, 100 MiB": made(1024, {}, racks=RACKS, collective={"bytes": 100 * MIB, "seconds": 0.1}),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=list(CASES), help="only this one")
    parser.add_argument("--out", help="also write the seconds of each run to this file, as JSON")
    args = parser.parse_args()
    rows, written = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, each in CASES.items():
            if args.cluster not in (None, name):
                continue
            source, target = Path(folder, "profile.json"), Path(folder, "plan.json")
            profile.save(each, source)
            command = [sys.executable, "-m", "jaxcomm.cli", "plan", str(source), "--out", str(target)]
            took = []
            for _ in range(RUNS):
                start = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                took.append(time.perf_counter() - start)
            written.append(turns.row({"plan": took}, cluster=name))
            rows.append([name, seconds_text(statistics.median(took)), f"{target.stat().st_size / 1024:.0f} KiB"])
            print(name, file=sys.stderr)
    turns.write(args.out, written)
    print(table(["cluster", "jaxcomm plan", "plan"], rows))


if __name__ == "__main__":
    main()
