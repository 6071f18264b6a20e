"""What a plan has carry messages between hosts, in words."""

from __future__ import annotations

import textwrap

from jaxcomm.plan.transport import BetweenHosts


def between_hosts_headline(chosen: BetweenHosts) -> str:
    """One sentence: what, and why."""
    lost = f"{100 * chosen.loss_rate:.3g}% of packets get lost on the worst way"
    from_ = f"from {100 * chosen.udp_from:.3g}% on"
    if chosen.transport == "udp":
        return f"On CPUs between hosts over UDP: {lost}, for which TCP slows down; UDP pays {from_}."
    return f"On CPUs between hosts over TCP: {lost}; UDP would pay {from_}."


def between_hosts_section(chosen: BetweenHosts) -> str:
    """The section of `jaxcomm explain`, as plain text without a trailing newline."""
    words = (
        f"{between_hosts_headline(chosen)} jaxcomm.init(plan=…) before the first collective sees to it, unless "
        "JAXCOMM_TRANSPORT is named."
    )
    return "What carries messages between hosts\n" + textwrap.indent(textwrap.fill(words, 108), "  ")
