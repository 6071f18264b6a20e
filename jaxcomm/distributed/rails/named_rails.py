"""The rails that the user has named, in JAXCOMM_RAILS or for `jaxcomm.init`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from jaxcomm.errors import JaxcommError

FABRIC: Final = "fabric"  # the kind of rails over libfabric
MOST_RAILS: Final = 16
_MOST_RATE: Final = 10**9
_RAIL: Final = re.compile(
    r"(?:(?P<fabric>fabric:(?![0-9]+$)[^:/\s]+(?:/[^:/\s]+)?)|(?:(?P<kind>tcp|udp):(?![0-9]+$))?(?P<name>[^:]+))"
    r"(?::(?P<rate>[0-9]{1,10}))?"
)


class NamedRail(NamedTuple):
    """A rail that the user has named.

    Attributes:
      name: an interface, an IPv4 address, or a fabric as in "fabric:verbs/mlx5_0".
      rate: the rate relative to other rails; 0 if not given.
      kind: "tcp", "udp" or "fabric"; "" for the kind of JAXCOMM_TRANSPORT or the plan.
    """

    name: str
    rate: int = 0
    kind: str = ""


def named_rails(source: str, words: str | Sequence[str]) -> tuple[NamedRail, ...]:
    """Parses rails, each written "eth0", "udp:eth0", "eth0:4000" or "fabric:verbs/mlx5_0:100000".

    "tcp:4000" is the interface tcp with a rate.

    Args:
      source: the setting's source, for errors.
      words: one word per rail, or one string with commas between them.

    Raises:
      JaxcommError: a word is invalid, there are no rails or too many, a rail is named twice, or only some rails have
        rates.
    """
    each_word = words.split(",") if isinstance(words, str) else words
    if not isinstance(each_word, Sequence) or not all(isinstance(word, str) for word in each_word) or not each_word:
        raise _wrong(f"{source} is {words!r}", "it is a string, or a list with a string for each rail")
    rails = []
    for word in each_word:
        match = _RAIL.fullmatch(word.strip())
        if match is None or not 0 < int(match["rate"] or 1) <= _MOST_RATE:
            raise _wrong(
                f"{source} names the rail {word!r}",
                "a rail is [tcp:|udp:]INTERFACE[:MBIT] or fabric:PROVIDER[/DOMAIN][:MBIT]",
            )
        kind = FABRIC if match["fabric"] else match["kind"] or ""
        rails.append(NamedRail(match["fabric"] or match["name"], int(match["rate"] or 0), kind))
    if len({rail.name for rail in rails}) < len(rails) or len(rails) > MOST_RAILS:
        raise _wrong(f"{source} names {', '.join(rail.name for rail in rails)}", f"up to {MOST_RAILS}, each once")
    if any(rail.rate for rail in rails) and not all(rail.rate for rail in rails):
        raise _wrong(f"{source} gives a rate to some rails", "it belongs to all of them, or to none")
    return tuple(rails)


def _wrong(found: str, wanted: str) -> JaxcommError:
    return JaxcommError(f"{found}; {wanted}.\n  Cure: write for example eth0,eth1 or eth0:4000,eth1:1000.")
