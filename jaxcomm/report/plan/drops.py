"""A drop policy in words and tables."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import Final

from jaxcomm.plan.drops import Drops
from jaxcomm.report.tables import bytes_text, seconds_text, table

ROWS: Final = 16  # maximum number of layers with a row each; with more layers, adjacent equal layers share a row


def drops_headline(policy: Drops) -> str:
    """One sentence: the allowed drops, and the time with and without them."""
    return (
        f"Up to {policy.bound:.3g} of each gradient may be dropped, {policy.budget:.3g} of all ({policy.source}): "
        f"{seconds_text(policy.seconds)} for a step's gradients by rings, {seconds_text(policy.bsp_seconds)} if "
        "nothing is dropped. Only where a training asks for it."
    )


def drops_section(policy: Drops) -> str:
    """The section of `jaxcomm explain` on drops, as plain text without a trailing newline."""
    lines = [textwrap.fill(line, 110, initial_indent="  ", subsequent_indent="  ") for line in _words(policy)]
    parts = ["Gradients that may be dropped", *lines, textwrap.indent(_layers(policy), "  ")]
    if policy.buffer:
        parts += [textwrap.fill(_buffer_words(policy), 110, initial_indent="  ", subsequent_indent="  ")]
        parts += [textwrap.indent(_queues(policy), "  ")]
    return "\n".join(parts)


def _words(policy: Drops) -> Iterator[str]:
    yield drops_headline(policy)
    yield (
        f"A gradient is dropped in segments of {bytes_text(policy.segment_bytes)}. A segment whose mean size is at "
        f"most the median of its layer is small; small ones are dropped first ({policy.small_share:.0%} are small)."
    )
    yield "The times are for rings in which every round waits for the slowest rank, and packets are lost at random."
    if policy.rounds is not None:
        solver = (
            "without a solver"
            if policy.status == "NOT_NEEDED"
            else f"by cp_sat, {policy.status.lower()}, gap {policy.gap:.2%}"
        )
        yield f"A training that drops all this takes {policy.rounds:.3g} steps more ({solver})."
    else:
        yield "The cost of drops in each layer was not measured, so front layers drop first, as much as they may."


def _layers(policy: Drops) -> str:
    alone = len(policy.layers) <= ROWS
    places = range(len(policy.layers))
    keys = [(place if alone else -1, policy.layers[place].priority, policy.layers[place].share) for place in places]
    rows = []
    for (_, priority, share), group in itertools.groupby(places, key=lambda place: keys[place]):
        layers = [policy.layers[place] for place in group]
        first, last = layers[0].name, layers[-1].name
        names = first if len(layers) == 1 else f"{first} … {last} ({len(layers)})"
        nbytes = sum(layer.bytes for layer in layers)
        segments = sum(policy.segments(layer.name) for layer in layers)
        rows.append([names, bytes_text(nbytes), priority, f"{share:.2%}", segments])
    return table(["layer, front first", "bytes", "queue", "may drop", "segments"], rows)


def _buffer_words(policy: Drops) -> str:
    assert policy.buffer is not None
    cost = "" if policy.buffer.rounds is None else f"; what it drops costs {policy.buffer.rounds:.3g} steps"
    return (
        f"A switch with {policy.buffer.packets} packets of buffer serves queue 0 first, drops small gradients (no ECN) "
        f"from one number of waiting packets on, and all from another{cost}. Predicted for packets that arrive "
        "at random; near full load the later queues lose more:"
    )


def _queues(policy: Drops) -> str:
    assert policy.buffer is not None
    rows = [
        [i, f"{queue.load:.3g}", queue.small, queue.large, f"{queue.small_drops:.2g}", f"{queue.large_drops:.2g}"]
        for i, queue in enumerate(policy.buffer.queues)
    ]
    return table(["queue", "load", "small from", "all from", "small dropped", "large dropped"], rows)
