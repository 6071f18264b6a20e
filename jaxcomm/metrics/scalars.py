"""The statistics as a flat dict of scalars, for TensorBoard, Weights & Biases and other metric writers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from jaxcomm import statistics
from jaxcomm.metrics.series import largest_share, site_name, trial_gain
from jaxcomm.statistics import Stats


def scalars(stats: Stats | None = None) -> dict[str, float]:
    """Scalars to plot over the steps of a run, under names such as `psum.data.8x4096.direct/transfer_s`.

    The part before the slash has a call site's operation, axes, ranks x bytes and plan. Metric writers show the scalars
    of one call site together, because they group scalars by this part. Sites without calls are left out. The scalars of
    a site are `calls`, `failed` and `early_bytes_share`; `wait_s`, the time from the first to the last rank's arrival;
    `lead_s`, the time from the second-last arrival to the last; and `transfer_s`, the time from the last arrival to the
    end. These times are medians over the calls for which the statistics have times. `trial_gain_s` is the time that the
    plan saved per call in its trial.

    A rail's scalar has a name such as `rail.1.eth0/share`: the process to which the rail leads, the rail's name, and
    the scalar. The scalars are `share` (for the largest calls), `bytes`, `fences`, and `is_open` (0 or 1).

    Args:
      stats: the result of `jaxcomm.stats()`; None reads the statistics now.
    """
    now = statistics.stats() if stats is None else stats
    sites = {
        f"{site_name(site)}.{site['plan']}/{name}": float(value)
        for site in now
        if site["calls"] or site["failed"]
        for name, value in _of_site(site).items()
    }
    rails = {
        f"rail.{rail['process']}.{rail['rail']}/{name}": float(value)
        for rail in now.rails
        for name, value in _of_rail(rail).items()
    }
    return sites | rails


def _of_rail(rail: Mapping[str, Any]) -> dict[str, float]:
    return {"share": largest_share(rail)} | {name: rail[name] for name in ("bytes", "fences", "is_open")}


def _of_site(site: Mapping[str, Any]) -> dict[str, float]:
    found = {name: site[name] for name in ("calls", "failed", "early_bytes_share")}
    if (gain := trial_gain(site)) is not None:
        found["trial_gain_s"] = gain
    if not site["arrivals"]:
        return found
    found["transfer_s"] = median(site["after_arrival_s"])
    if site["work_s"]:  # groups are an operand, and ranks wait only within a group: `wait_s` would be wrong
        return found
    latest = [sorted(row)[-2:] for row in site["arrivals"]]
    return found | {"wait_s": median(row[-1] for row in latest), "lead_s": median(row[-1] - row[0] for row in latest)}
