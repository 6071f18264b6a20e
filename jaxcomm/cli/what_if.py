"""`jaxcomm what-if`: predicts times on a cluster before and after a change, each time under a newly made plan."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from jaxcomm import planner, profile, simulate
from jaxcomm.cli.common import arguments, network_options, options, output, progress
from jaxcomm.cli.common.arguments import Late
from jaxcomm.cli.common.change import Change
from jaxcomm.planner import rails
from jaxcomm.planner.late_ranks import LateRanks
from jaxcomm.profile import Profile, Straggler
from jaxcomm.report.plan.explanation import entry_for
from jaxcomm.report.plan.rails import shares_text
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import nobody_late_text, spec_text

EXAMPLE = """
    jaxcomm what-if profile.json
    jaxcomm what-if profile.json --rate 1/4 --sizes 64MiB,1GiB
    jaxcomm what-if profile.json --late rank=5,ms=20
    jaxcomm what-if profile.json --racks 5+3 --uplink-rate 0=1/4 --nic-rate 3=1/2
    jaxcomm what-if late.json --no-straggler --late rank=5,ms=20      # a profile with a late rank
    jaxcomm what-if rails.json --without-rail eth1 --rail-rate eth0=1/2

    --racks names the racks 0, 1, …; `jaxcomm profile import` adds rails to a profile.
"""

_SIZES: Final = "1MiB,64MiB,1GiB"
_QUARTER: Final = Fraction(1, 4)
_LATE_S: Final = 10e-3  # delay in the standard changes if no rank is late; Devraj et al. measured a mean of 9.45 ms


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One call under the plan for a profile. `seconds` and `lower_bound` count from the last rank's arrival on.

    `straggler` is the rank that is last most often, None if no late rank is known.
    `lower_bound` allows work before the last arrival. If the schedule has late ranks, the on-time ranks can start at
    the last on-time arrival. Otherwise all ranks except the last can start at the second-to-last arrival.
    `wait_s` is the mean time from the first to the last arrival.
    `rails` lists each rail's share of the buffer. `rails_seconds` is the call's time as computed from the rails'
    measured times, if all ranks arrive together. Both are None without rails.
    `groups_s` is the slowest group's time to average the model's bytes. `rho` is the remaining share of the ranks'
    distance from their mean after `groups_period` iterations. These three fields are None if no link or NIC is slow.
    """

    schedule: str
    seconds: float
    lower_bound: float
    wait_s: float
    straggler: int | None
    rails: str | None
    rails_seconds: float | None
    groups_s: float | None
    rho: float | None
    groups_period: int | None


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("profile", help="a profile, from `jaxcomm profile`")
    parser.add_argument(
        "--no-straggler", action="store_true", help="move the late rank's arrival to the others' median"
    )
    parser.add_argument("--rate", type=arguments.rate, metavar="1/4", help="every link at this multiple of its rate")
    options.late_ranks(parser, "make a rank arrive later than in the profile")
    options.repeated(parser, "--without-rail", str, "NAME", "remove a rail")
    for name, parse, metavar, subject in (
        ("--rail-rate", arguments.rail_rate, "NAME=1/4", "one rail"),
        ("--uplink-rate", arguments.uplink_rate, "RACK=1/4", "the uplink of a rack"),
        ("--nic-rate", arguments.nic_rate, "RANK=1/4", "a rank's NIC"),
    ):
        options.repeated(parser, name, parse, metavar, f"{subject} at this multiple of its rate")
    network_options.add_arguments(parser)
    options.model_bytes(parser, "all buckets, the collective, or the largest of --sizes")
    options.sizes(parser, _SIZES, "bytes of a call")
    options.ports(parser)
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Plans for the profile as measured and after each change. Prints the predictions side by side."""
    measured = network_options.apply(args, profile.load(args.profile))
    asked = Change(
        args.no_straggler,
        args.rate,
        *map(tuple, (args.late, args.without_rail, args.rail_rate, args.uplink_rate, args.nic_rate)),
    )
    model = args.model_bytes or sum(bucket.bytes for bucket in measured.buckets)
    model = model or (measured.collective.bytes if measured.collective else max(args.sizes))
    changes = [asked] if asked != Change() else _standard(measured)
    profiles = [measured, *(change.apply(measured) for change in changes)]
    with progress.Bar(len(profiles), "planning") as bar:
        predicted = []
        for each in profiles:
            predicted.append(_predict(each, args.sizes, args.ports, model))
            bar.update()
    today, *changed = predicted
    rows = [
        (change, nbytes, before, after)
        for change, found in zip(changes, changed, strict=True)
        for nbytes, before, after in zip(args.sizes, today, found, strict=True)
    ]
    if args.json:
        document = {"profile": measured.hash, "ranks": measured.ranks, "rows": [_json(*row) for row in rows]}
        output.print_json("what-if", document)
        return 0
    print(f"{measured.ranks} ranks, {_lateness(measured)}; times from the last rank's arrival on\n")
    header = ["change", "bytes", "today", "runs", "changed", "would run", "its bound", "difference", "with the wait"]
    print(table(header, [_cells(*row) for row in rows]))
    if measured.rails:
        print(f"\nOn the rails alone, by their measured tables, if all ranks arrive together\n\n{_rails_table(rows)}")
    if any(side.groups_s for row in rows for side in row[2:]):
        print(f"\nGroups that take turns, for a model of {bytes_text(model)}: averages within groups only")
        print(f"\n{_groups_table(rows)}")
    print("\nits bound: lower bound of all schedules that use only the late ranks' delay behind the others")
    print("with the wait: the difference counted from the first rank's arrival, with its wait for the last rank")
    for change, each in zip(changes, profiles[1:], strict=True):
        print(f"then, with {change}: {_lateness(each)}")
    return 0


def _standard(measured: Profile) -> list[Change]:
    """The standard changes: no late rank, slower links, another late rank, one rail less."""
    several = measured.rails if len(measured.rails) > 1 else []
    gone = [Change(without_rails=(rail.name,)) for rail in several]
    late = _straggler(measured)
    if not late:
        return [Change(rate=_QUARTER), Change(late=(Late(0, _LATE_S),)), *gone]
    other = (Late((late.rank + 1) % measured.ranks, late.median_s or late.max_s),)
    return [
        Change(no_straggler=True),
        Change(rate=_QUARTER),
        Change(late=other),
        Change(no_straggler=True, late=other),
        *gone,
    ]


def _predict(given: Profile, sizes: list[int], ports: int, model: int) -> list[Prediction]:
    """One prediction for each size, under the plan that `jaxcomm plan` makes from the profile."""
    made = planner.plan(given, ports=ports, model_bytes=model)
    turns = made.groups
    grouped = (max(turns.seconds), turns.rho, turns.period) if turns else (None, None, None)
    late, late_ranks = _straggler(given), LateRanks.of(given).ranks
    arrivals = given.arrivals or [[0.0] * given.ranks]
    wait = float(np.max(given.arrivals, axis=1).mean()) if given.arrivals else 0.0
    links = made.links
    found = []
    for nbytes in sizes:
        schedule = made.schedule_for(nbytes)
        assert schedule is not None  # if no dtype is given, a plan has a schedule for every size
        releases = simulate.releases(schedule, arrivals)
        nccl = made.nccl_seconds(nbytes)
        link = simulate.link_of(schedule, nbytes, links)
        seconds = nccl or simulate.mean_seconds(schedule, nbytes, *link, late_ranks, arrivals)
        # With several late ranks, the on-time ranks can start before the second-to-last arrival.
        delays = simulate.Delays(-releases[0] if len(releases) > 1 else late.delays if late else ())
        bound = simulate.lower_bound(given.ranks, nbytes, delays, links.alpha, links.beta, ports, links.topology)
        if made.executors and made.executors.nccl:
            bound = min(bound, made.executors.nccl_seconds(nbytes))  # if switches sum, NCCL is faster than the bound
        runs = spec_text(entry_for(made, nbytes).schedule)
        shares = made.rails.split_for(nbytes) if made.rails else ()
        split = (shares_text(shares), rails.seconds(given, shares, nbytes)) if shares else (None, None)
        found.append(Prediction(runs, seconds, bound, wait, late.rank if late else None, *split, *grouped))
    return found


def _lateness(measured: Profile) -> str:
    if not measured.arrivals:
        return "no rank known to be late"
    late = profile.find_straggler(measured)
    if not late.is_late:
        return nobody_late_text(f"rank {late.rank}", late, measured.ranks)
    return (
        f"rank {late.rank} last in {late.late_steps} of {late.steps} steps, by {seconds_text(late.median_s)} (median)"
    )


def _straggler(measured: Profile) -> Straggler | None:
    """The late rank, if one is known."""
    late = profile.find_straggler(measured) if measured.arrivals else None
    return late if late and late.is_late else None


def _cells(change: Change, nbytes: int, today: Prediction, changed: Prediction) -> list[object]:
    return [
        change,
        bytes_text(nbytes),
        seconds_text(today.seconds),
        today.schedule,
        seconds_text(changed.seconds),
        changed.schedule,
        seconds_text(changed.lower_bound),
        *map(_signed, _differences(today, changed)),
    ]


def _rails_table(rows: list[tuple[Change, int, Prediction, Prediction]]) -> str:
    cells = []
    for change, nbytes, today, changed in rows:
        before, after = today.rails_seconds, changed.rails_seconds
        assert before is not None and after is not None  # no change removes the last rail
        line = [change, bytes_text(nbytes), seconds_text(before), today.rails, seconds_text(after), changed.rails]
        cells.append([*line, _signed(after - before)])
    return table(["change", "bytes", "today", "carried by", "changed", "would be carried by", "difference"], cells)


def _groups_table(rows: list[tuple[Change, int, Prediction, Prediction]]) -> str:
    def cells(side: Prediction) -> tuple[str, str]:
        if side.groups_s is None:
            return "-", "-"
        return seconds_text(side.groups_s), f"{side.rho:.3g} in {side.groups_period}"

    by_change = {change: (*cells(today), *cells(changed)) for change, _, today, changed in rows}
    header = ["change", "today", "rho in iterations", "changed", "would have rho in iterations"]
    return table(header, [[change, *line] for change, line in by_change.items()])


def _json(change: Change, nbytes: int, today: Prediction, changed: Prediction) -> dict[str, Any]:
    alone, whole = _differences(today, changed)
    return {
        "change": change.document(),
        "bytes": nbytes,
        "today": dataclasses.asdict(today),
        "changed": dataclasses.asdict(changed),
        "difference_s": alone,
        "difference_with_wait_s": whole,
    }


def _differences(today: Prediction, changed: Prediction) -> tuple[float, float]:
    alone = changed.seconds - today.seconds
    return alone, alone + changed.wait_s - today.wait_s


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"
