"""What a plan has carry messages between hosts, in words."""

from __future__ import annotations

import textwrap

from jaxcomm.plan.between_hosts import BetweenHosts


def between_hosts_headline(chosen: BetweenHosts) -> str:
    """One sentence: what, and why."""
    lost = f"{chosen.loss_rate:.2%} of packets get lost on the worst link"
    if chosen.transport == "udp":
        return f"Between hosts over UDP: {lost}, for which TCP slows down; from {chosen.udp_from:.2%} on UDP is faster."
    return f"Between hosts over TCP: {lost}; UDP would be faster from {chosen.udp_from:.2%} on."


def between_hosts_section(chosen: BetweenHosts) -> str:
    """The section of `jaxcomm explain`, as plain text without a trailing newline."""
    words = (
        f"{between_hosts_headline(chosen)} jaxcomm.init(plan=…) before the first collective sees to it, unless "
        "JAXCOMM_TRANSPORT is set."
    )
    return "What carries messages between hosts\n" + textwrap.indent(textwrap.fill(words, 108), "  ")
