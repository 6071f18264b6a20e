"""The groups of a plan in words and tables: ranks, times, and rho, the disagreement that remains after a period."""

from __future__ import annotations

import textwrap
from typing import Final

from jaxcomm.plan.groups import Groups
from jaxcomm.report.tables import bytes_text, seconds_text, table

_ROWS: Final = 16  # maximum number of iterations shown
_WIDTH: Final = 90  # maximum number of characters for the groups of one iteration


def groups_headline(groups: Groups) -> str:
    """One sentence: the mean time of an iteration in groups, the shortest time to average over all ranks, and rho."""
    costs = groups.baselines
    fastest = min(costs.ps, costs.ring, costs.double_tree, costs.hierarchical)
    less = f" ({1 - groups.mean_s / fastest:z.0%} less)" if fastest else ""
    return (
        f"Averages of {bytes_text(groups.bytes)} within groups, {groups.period} iterations in turn: "
        f"{seconds_text(groups.mean_s)} on average, {seconds_text(fastest)} for the fastest of all ranks{less}; "
        f"rho = {groups.rho:.3g}. "
        "Only where a training asks for it."
    )


def groups_section(groups: Groups) -> str:
    """The section of `jaxcomm explain` on groups, as plain text without a trailing newline."""
    sizes = " + ".join(str(len(rack.ranks)) for rack in groups.racks)
    lines = [
        "These are averages within groups, not over all ranks: other mathematics than an allreduce. Nothing above "
        f"uses them; they run only where a training asks for groups. For a model of {bytes_text(groups.bytes)}.",
        f"Racks of {textwrap.shorten(sizes, 60)} ranks, uplinks "
        f"{_slowness([rack.uplink for rack in groups.racks])}, NICs {_slowness(groups.nics)}.",
        f"The slowest group takes {seconds_text(max(groups.seconds))}; in any pattern by which all ranks come to "
        f"agree it takes at least {seconds_text(groups.bound)} ({groups.status.lower()} in that, gap "
        f"{groups.gap:.2%}).",
        f"In every period of {groups.period} iterations, {seconds_text(sum(groups.seconds))}, the distance from "
        f"agreement shrinks to {groups.rho:.3g} of itself or less (rho), by {1 - groups.rate:.1%} per iteration on "
        "average. Of the patterns of that cost that were tried, this one leaves the least per second; that it is the "
        "best one is not proved.",
        f"If every rank moves by 1 of its own per iteration, ranks are {groups.spread.mean():.2g} from the mean of "
        f"all on average; rank {groups.spread.argmax()} is farthest, by {groups.spread.max():.2g}.",
    ]
    if max([*groups.nics, *(rack.uplink for rack in groups.racks)]) == 1:
        lines.append("No link is slow: all that groups save is the rounds and volume of a larger allreduce.")
    if groups.pattern.rho > 1 - 1e-9:
        lines.append("The paper's pattern never brings these ranks to agreement: some never meet.")
    listing = "\n".join(textwrap.fill(line, 110, initial_indent="  - ", subsequent_indent="    ") for line in lines)
    return "\n".join(
        [
            "Groups that take turns (divide and shuffle)",
            listing,
            textwrap.indent(_costs(groups), "  "),
            textwrap.indent(_pattern(groups), "  "),
        ]
    )


def _costs(groups: Groups) -> str:
    rho = f"{groups.rho:.3g} in {groups.period}"
    theirs = f"{groups.pattern.rho:.3g} in {groups.pattern.period}"
    rows = [
        ["these groups", seconds_text(max(groups.seconds)), rho],
        ["the paper's pattern", seconds_text(groups.pattern.seconds), theirs],
    ]
    names = {"ps": "parameter server", "double_tree": "double tree"}
    for name, seconds in groups.baselines:
        rows.append([names.get(name, name), seconds_text(seconds), "-" if name == "gossip" else "0 in 1"])
    return table(["an iteration by", "takes", "rho in iterations"], rows)


def _pattern(groups: Groups) -> str:
    rows = []
    for t, (groups_of, seconds) in enumerate(zip(groups.iterations, groups.seconds, strict=True)):
        if t == _ROWS:
            rows.append(["...", f"{groups.period - t} more", ""])
            break
        text = " | ".join(" ".join(map(str, group)) for group in groups_of)
        rows.append([str(t), seconds_text(seconds), text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ..."])
    return table(["iteration", "slowest", "groups"], rows)


def _slowness(values: tuple[float, ...] | list[float]) -> str:
    low, high = min(values), max(values)
    if low == high:
        return "as fast as links within a rack" if low == 1 else f"{low:g} times as slow as links within"
    return f"{low:g} to {high:g} times as slow as links within"
