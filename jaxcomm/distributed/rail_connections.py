"""The connections of this process with others, over every rail that two have in common, and what each carries."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Collection, Mapping, Sequence

from jaxcomm.distributed import host, rails
from jaxcomm.distributed.cold_rail import cold_rail, round_trip_s, with_cold_range
from jaxcomm.distributed.connector import connect_to
from jaxcomm.distributed.listener import HANDSHAKE_S
from jaxcomm.distributed.records import Record
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say_once
from jaxcomm.shares import SharesFrom


def rails_between(own: Record, peer: Record) -> list[str]:
    """The rails that lead to another process.

    Raises:
      JaxcommError: there is none, or the two have different plans for them.
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
    pairs = [each for each in itertools.combinations(records, 2) if not host.share_memory(*each)]
    return [
        name
        for name in rails.names([record.rails for record in records])
        if name not in lacking and any(name in rails.common(one.rails, other.rails) for one, other in pairs)
    ]


def connect_rails(
    own: Record,
    peers: Mapping[int, Record],
    leads: Mapping[int, list[str]],
    key: bytes,
    deadline: float,
    after_failure: contextlib.ExitStack,
) -> tuple[dict[tuple[int, str], socket.socket], list[str]]:
    """The connections with lower processes, by process and rail, and the rails without which it must go."""
    sockets: dict[tuple[int, str], socket.socket] = {}
    lacking: list[str] = []
    interfaces = {rail.name: rail.interface for rail in own.rails}
    for other in (other for other in leads if other < own.process):
        for number, end in enumerate(peers[other].rails):
            if end.name not in leads[other] or end.name in lacking:
                continue
            soon = time.monotonic() + HANDSHAKE_S
            try:
                sockets[other, end.name] = connect_to(
                    other,
                    end,
                    key,
                    process=own.process,
                    rail=number,
                    interface=interfaces[end.name],
                    deadline=min(deadline, soon) if end.network else deadline,
                )
                after_failure.callback(sockets[other, end.name].close)
            except JaxcommError as error:
                if not end.network:
                    raise
                lacking.append(end.name)  # nobody has asked for this one
                say_once(f"no process uses the rail {end.name}: {error}")
    return sockets, lacking


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
    """What the rails to each process carry: as planned, else small calls by round trips and others by rates."""
    shares = {other: rails.shares(lead, own.rails, peers[other].rails, planned) for other, lead in leads.items()}
    if rails.is_planned(own.rails, planned):
        return shares
    by_rate = {other: each[0].shares for other, each in shares.items()}
    cold = cold_rail({other: max(each, key=each.__getitem__) for other, each in by_rate.items()}, round_trips)
    if cold is None:
        return shares
    return {
        other: with_cold_range(by_rate[other], rails.rates(lead, own.rails, peers[other].rails), cold)
        for other, lead in leads.items()
    }
