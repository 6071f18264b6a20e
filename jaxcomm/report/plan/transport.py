"""The protocol between hosts that a plan chooses, in words."""

from __future__ import annotations

import textwrap

from jaxcomm.plan.transport import Transport


def transport_headline(chosen: Transport) -> str:
    """One sentence: the protocol, and the reason for choosing it."""
    lost = f"{100 * chosen.loss_rate:.3g}% of packets get lost on the worst path"
    from_ = f"from {100 * chosen.udp_from:.3g}% on"
    if chosen.protocol == "udp":
        return f"On CPUs between hosts over UDP: {lost}, which slow TCP down; UDP pays {from_}."
    return f"On CPUs between hosts over TCP: {lost}; UDP would pay {from_}."


def transport_section(chosen: Transport) -> str:
    """The section of `jaxcomm explain` on the protocol, as plain text without a trailing newline."""
    words = (
        f"{transport_headline(chosen)} jaxcomm.init(plan=…) before the first collective applies it, unless "
        "JAXCOMM_TRANSPORT is set."
    )
    return "The transport between hosts\n" + textwrap.indent(textwrap.fill(words, 108), "  ")
