"""The connections of this process with other processes over every common rail, and the rails' shares."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from jaxcomm.distributed.connect.connector import connect_to
from jaxcomm.distributed.connect.listener import HANDSHAKE_S
from jaxcomm.distributed.connect.records import Record, share_memory
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.lowest_latency_rail import lowest_latency_rail, round_trip_s, with_range_for_small_calls
from jaxcomm.distributed.rails.named_rails import FABRIC
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom
from jaxcomm.log import say_once

_AGAIN_S: Final = 1.0  # timeout of an attempt over a rail on which an attempt to another process has failed


def rails_between(own: Record, peer: Record, without: Collection[str] = ()) -> list[str]:
    """Returns the rails that lead to another process, except those in `without`.

    Raises:
      JaxcommError: there is no common rail, or the plans of the two processes have different rails or shares.
    """
    lower, higher = sorted((own, peer))
    if lower.planned != higher.planned:
        raise JaxcommError(
            f"process {lower.process} and process {higher.process} have plans with different rails.\n"
            "  Cure: jaxcomm.init(plan=…) with the same plan in all processes, or in none."
        )
    lead = [name for name in rail_ends.common(lower.rails, higher.rails) if name not in without]
    if not any(_has_addresses(name, lower, higher) for name in lead):
        have = " and ".join(
            f"process {each.process} has {rail_ends.in_words(rail.name for rail in each.rails if rail.address)}"
            for each in (lower, higher)
        )
        raise JaxcommError(f"{have}: no rail is common to both.\n  Cure: the same JAXCOMM_RAILS for all processes.")
    return lead


def _has_addresses(name: str, own: Record, peer: Record) -> bool:
    return all(end.address for end in (*own.rails, *peer.rails) if end.name == name)


def used_rails(records: Sequence[Record], lacking: Collection[str]) -> list[str]:
    """Returns the rails that connect at least two processes. The list is the same in all processes.

    Args:
      records: the records of all processes.
      lacking: the rails to leave out.
    """
    records = sorted(records)
    pairs = [each for each in itertools.combinations(records, 2) if not share_memory(*each)]
    return [
        name
        for name in rail_ends.names([record.rails for record in records])
        if name not in lacking and any(name in rail_ends.common(one.rails, other.rails) for one, other in pairs)
    ]


def say_down(records: Sequence[Record]) -> None:
    """Logs one line for each named rail that is down on a host. The lines are the same in all processes."""
    ends = [(rail, record) for record in sorted(records) for rail in record.rails if not rail.network]
    for name in dict.fromkeys(rail.name for rail, _ in ends if not rail.is_up):
        down = [(rail, record) for rail, record in ends if rail.name == name and not rail.is_up]
        hosts = ", ".join(dict.fromkeys(record.host_name for rail, record in down if rail.address))
        without = ", ".join(dict.fromkeys(record.host_name for rail, record in down if not rail.address))
        may_appear = any(rail_ends.may_appear(rail) for rail, _ in down)
        words = [f"down on {hosts}, and left out until it comes up"] if hosts else []
        if without:
            then = "left out until it has one" if may_appear else "not used there by this job"
            words.append(f"missing, or without an address, on {without}, and {then}")
        say_once(f"the rail {name} is {'; '.join(words)}: the other rails carry its part.")


class Connected(NamedTuple):
    """The connections with the processes that have lower numbers.

    Attributes:
      sockets: the connections, by process and rail.
      lacking: rails that the user did not name and that failed. All processes must leave these rails out.
      down: (process, rail) pairs: rails that the user named and that cannot be connected to the process now.
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
    """Connects with the processes that have lower numbers.

    Raises:
      JaxcommError: one of these processes cannot be reached over any rail before the deadline.
    """
    found = Connected({}, [], [])
    ends = {rail.name: rail for rail in own.rails}
    failed: set[str] = set()  # rails on which an attempt failed; later attempts over these rails have a short timeout
    for other in (other for other in leads if other < own.process):
        there = {end.name: (number, end) for number, end in enumerate(peers[other].rails)}
        reachable = [name for name in leads[other] if _has_addresses(name, own, peers[other])]
        found.down.extend((other, name) for name in leads[other] if name not in reachable)
        order = sorted(reachable, key=lambda name: not (ends[name].is_up and there[name][1].is_up))
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
                    found.lacking.append(name)  # the user did not name this rail
                    say_once(f"no process uses the rail {name}: {error}")
                else:
                    found.down.append((other, name))
                    on = peers[other].host_name
                    say_once(
                        f"the rail {name} to process {other} on {on} is left out until it can be connected: {error}"
                    )
    return found


def round_trips_over(
    leads: Mapping[int, list[str]], sockets: Mapping[tuple[int, str], socket.socket], kinds: Mapping[str, str]
) -> dict[tuple[int, str], float]:
    """Returns the RTTs of the rails to other processes, in seconds. Omits rails whose RTT the kernel does not know.

    The kernel knows no RTT of a fabric rail, because the rail's TCP connection may use another network.
    """
    found = {
        (other, name): round_trip_s(each)
        for (other, name), each in sockets.items()
        if name in leads[other] and kinds[name] != FABRIC
    }
    return {to: seconds for to, seconds in found.items() if seconds is not None}


def rails_shares(
    own: Record,
    peers: Mapping[int, Record],
    leads: Mapping[int, list[str]],
    round_trips: Mapping[tuple[int, str], float],
    planned: Sequence[SharesFrom],
) -> dict[int, list[SharesFrom]]:
    """Returns the rails' shares to each process: the planned shares, or, without a plan, shares by RTTs and rates.

    RTTs decide the shares of small calls, and rates decide the shares of larger calls.
    """
    shares = {other: rail_ends.shares(lead, own.rails, peers[other].rails, planned) for other, lead in leads.items()}
    if planned:
        return shares
    by_rate = {other: each[0].shares for other, each in shares.items()}
    chosen = lowest_latency_rail(
        {other: max(each, key=each.__getitem__) for other, each in by_rate.items()}, round_trips
    )
    if chosen is None:
        return shares
    return {
        other: with_range_for_small_calls(by_rate[other], rail_ends.rates(lead, own.rails, peers[other].rails), chosen)
        for other, lead in leads.items()
    }
