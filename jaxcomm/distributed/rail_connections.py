"""The connections of this process with others, over every rail that two have in common, and what each carries."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.distributed import rails
from jaxcomm.distributed.connector import connect_to
from jaxcomm.distributed.listener import HANDSHAKE_S
from jaxcomm.distributed.lowest_latency_rail import lowest_latency_rail, round_trip_s, with_range_for_small_calls
from jaxcomm.distributed.records import Record, share_memory
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom
from jaxcomm.log import say_once

_AGAIN_S: Final = 1.0  # for a rail to a process that did not lead to another one


def rails_between(own: Record, peer: Record) -> list[str]:
    """The rails that lead to another process.

    Raises:
      JaxcommError: there is no common rail, or the two have different plans for them.
    """
    lower, higher = sorted((own, peer))
    if lower.planned != higher.planned:
        raise JaxcommError(
            f"process {lower.process} and process {higher.process} have plans with different shares of rails.\n"
            "  Cure: jaxcomm.init(plan=…) with the same plan in all processes, or in none."
        )
    lead = rails.common(lower.rails, higher.rails)
    if not lead:
        have = " and ".join(
            f"process {each.process} has {', '.join(rail.name or 'the way to the coordinator' for rail in each.rails)}"
            for each in (lower, higher)
        )
        raise JaxcommError(f"{have}: no rail is common to both.\n  Cure: the same JAXCOMM_RAILS for all processes.")
    return lead


def used_rails(records: Sequence[Record], lacking: Collection[str]) -> list[str]:
    """The rails that lead from some process to another one, which are the same in all processes, in this order.

    Args:
      records: of all processes.
      lacking: the rails without which it must go.
    """
    records = sorted(records)
    pairs = [each for each in itertools.combinations(records, 2) if not share_memory(*each)]
    return [
        name
        for name in rails.names([record.rails for record in records])
        if name not in lacking and any(name in rails.common(one.rails, other.rails) for one, other in pairs)
    ]


def say_down(records: Sequence[Record]) -> None:
    """Logs, alike in all processes, which of the named rails are down on which host; one line for each rail."""
    ends = [(rail, record) for record in sorted(records) for rail in record.rails if not rail.network]
    for name in dict.fromkeys(rail.name for rail, _ in ends if not rail.is_up):
        down = [(rail, record) for rail, record in ends if rail.name == name and not rail.is_up]
        hosts = ", ".join(dict.fromkeys(record.host_name for rail, record in down if rail.address))
        without = ", ".join(dict.fromkeys(record.host_name for rail, record in down if not rail.address))
        words = [f"down on {hosts}, and left out until it comes up"] if hosts else []
        words += [f"missing, or without an address, on {without}, and not used there by this job"] if without else []
        say_once(f"the rail {name} is {'; '.join(words)}: the other rails carry its part.")


class Connected(NamedTuple):
    """The connections with lower processes, by process and rail.

    Attributes:
      sockets: the connections.
      lacking: rails that the user did not name, and that all processes must leave out.
      down: rails that the user named, and that cannot be connected now, by process.
    """

    sockets: dict[tuple[int, str], socket.socket]
    lacking: list[str]
    down: list[tuple[int, str]]


def connect_rails(
    own: Record,
    peers: Mapping[int, Record],
    leads: Mapping[int, list[str]],
    key: bytes,
    deadline: float,
    after_failure: contextlib.ExitStack,
) -> Connected:
    """Connects with the lower processes.

    Raises:
      JaxcommError: no rail leads to one of them before the deadline.
    """
    found = Connected({}, [], [])
    ends = {rail.name: rail for rail in own.rails}
    failed: set[str] = set()  # rails, to any process: of these the next attempt is short
    for other in (other for other in leads if other < own.process):
        there = {end.name: (number, end) for number, end in enumerate(peers[other].rails)}
        order = sorted(leads[other], key=lambda name: not (ends[name].is_up and there[name][1].is_up))
        for name in order:
            number, end = there[name]
            if name in found.lacking:
                continue
            has_one = any((other, each) in found.sockets for each in order)
            if has_one and not (ends[name].is_up and end.is_up):
                found.down.append((other, name))
                continue
            is_last = name == order[-1] and not has_one
            soon = time.monotonic() + (_AGAIN_S if name in failed else HANDSHAKE_S)
            try:
                found.sockets[other, name] = connect_to(
                    other,
                    end,
                    key,
                    process=own.process,
                    rail=number,
                    interface=ends[name].interface,
                    deadline=deadline if is_last and not end.network else min(deadline, soon),
                )
                after_failure.callback(found.sockets[other, name].close)
            except JaxcommError as error:
                if is_last and not end.network:
                    raise
                failed.add(name)
                if end.network:
                    found.lacking.append(name)  # the user did not name it
                    say_once(f"no process uses the rail {name}: {error}")
                else:
                    found.down.append((other, name))
                    on = peers[other].host_name
                    say_once(
                        f"the rail {name} to process {other} on {on} is left out until it can be connected: {error}"
                    )
    return found


def round_trips_over(
    leads: Mapping[int, list[str]], sockets: Mapping[tuple[int, str], socket.socket]
) -> dict[tuple[int, str], float]:
    """The round trips over the rails that lead to other processes, in seconds, as far as the kernel knows them."""
    found = {(other, name): round_trip_s(each) for (other, name), each in sockets.items() if name in leads[other]}
    return {to: seconds for to, seconds in found.items() if seconds is not None}


def rails_shares(
    own: Record,
    peers: Mapping[int, Record],
    leads: Mapping[int, list[str]],
    round_trips: Mapping[tuple[int, str], float],
    planned: Sequence[SharesFrom],
) -> dict[int, list[SharesFrom]]:
    """Shares of the rails to each process: as planned, else small calls by round trips and others by rates."""
    shares = {other: rails.shares(lead, own.rails, peers[other].rails, planned) for other, lead in leads.items()}
    if rails.is_planned(own.rails, planned):
        return shares
    by_rate = {other: each[0].shares for other, each in shares.items()}
    chosen = lowest_latency_rail(
        {other: max(each, key=each.__getitem__) for other, each in by_rate.items()}, round_trips
    )
    if chosen is None:
        return shares
    return {
        other: with_range_for_small_calls(by_rate[other], rails.rates(lead, own.rails, peers[other].rails), chosen)
        for other, lead in leads.items()
    }
