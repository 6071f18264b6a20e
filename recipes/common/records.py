"""The metrics of a run: a line on the screen, a row of metrics.csv, points for TensorBoard."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class Records:
    """`folder`/metrics.csv and `folder`/tensorboard, without what was recorded later than step `since`."""

    def __init__(self, folder: Path, since: int, steps: int) -> None:
        """Opens the records of a run of `steps` steps that begins or goes on after step `since`."""
        self._since, self._steps, self._start = since, steps, time.perf_counter()
        self._path = folder / "metrics.csv"
        self._rows = self._kept()
        self._points = SummaryWriter(str(folder / "tensorboard"), purge_step=since + 1)

    def add(self, step: int, metrics: Mapping[str, float], scalars: Mapping[str, float]) -> None:
        """Records the metrics after `step` steps; every call has the same names. The scalars go to TensorBoard only."""
        for name, value in {**metrics, **scalars}.items():
            self._points.add_scalar(name, value, step)
        self._points.flush()
        self._rows.append({"step": str(step)} | {name: repr(value) for name, value in metrics.items()})
        temporary = self._path.with_suffix(".partial")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._rows[-1])
            writer.writeheader()
            writer.writerows(self._rows)
        temporary.replace(self._path)
        seconds = time.perf_counter() - self._start
        left = seconds * (self._steps - step) / (step - self._since)
        values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(
            f"step {step:>{len(str(self._steps))}}/{self._steps}  {values}  {seconds:.0f} s, {left:.0f} s left",
            flush=True,
        )

    def _kept(self) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return [row for row in csv.DictReader(file) if int(row["step"]) <= self._since]
