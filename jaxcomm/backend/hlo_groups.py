"""The groups of a compiled program's collectives, read from XLA's text of the program (HLO)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from jaxcomm.errors import JaxcommError

Groups = list[tuple[int, ...]]  # positions of devices in the program's device assignment

_KINDS: Final = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_COLLECTIVE: Final = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (?:\(.*?\)|\S+) ({'|'.join(_KINDS)})(?:-start)?\(")
# Matches collectives of f16, which XLA does not pass to jaxcomm. XLA lowers 8-bit floats to f16 as well. Permutes and
# all-to-alls move bytes, so they are unaffected.
_HALVES: Final = re.compile(
    r"^\s*(?:ROOT )?%?\S+ = (?:\([^=]*?(?<!b)f16\[.*?\)|f16\[\S*) (all-reduce|all-gather|reduce-scatter)\(",
    re.MULTILINE,
)
_GROUPS: Final = re.compile(r", replica_groups=((?:mesh)?[\[{].*?)(?=, (?!device_ids)[a-z_]+=|$)")
_MESH: Final = re.compile(r"mesh\[(.*?)\](?:, ?device_ids=\((.*?)\))? \{(.*?)\}$")
_IOTA: Final = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_SHAPE: Final = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")
_MESSAGES: Final = ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
_MOST: Final = 2**31 - 1
# Without `use_global_device_ids`, the groups of these collectives list replicas, not devices. A program over several
# partitions has one replica, so such a collective spans all devices.
_COUNT_REPLICAS: Final = ("all-reduce", "all-gather", "reduce-scatter")


def groups_in(text: str, devices: int) -> dict[tuple[int, ...], set[str]]:
    """All groups of the program's collectives, in the order of the text, each with the kinds of its collectives.

    Args:
      text: XLA's text of the whole program.
      devices: the number of devices that the program runs on.

    Raises:
      JaxcommError: groups in an unknown notation, more elements than jaxlib can count, or a collective of f16.
    """
    if halves := _HALVES.search(text):
        raise JaxcommError(
            f"{halves[1]} of f16 or 8-bit floats between devices: XLA does not pass it on.\n"
            "  Cure: use bfloat16 or float32 there, or unset JAXCOMM_EVERY_COLLECTIVE."
        )
    everybody = tuple(range(devices))
    found: dict[tuple[int, ...], set[str]] = {}
    several_partitions = re.search(r"num_partitions=(\d+)", text[: text.find("\n")])
    partitions = int(several_partitions[1]) if several_partitions else devices
    for line in text.splitlines():
        collective = _COLLECTIVE.match(line)
        if not collective:
            continue
        written = _GROUPS.search(line)
        counts_replicas = (
            collective[1] in _COUNT_REPLICAS
            and partitions > 1
            and "channel_id=" in line
            and "use_global_device_ids=true" not in line
        )
        groups: Groups = [] if written is None or counts_replicas else list(_parse(written[1].strip()))
        for group in groups or [everybody]:
            found.setdefault(group, set()).add(collective[1])
        _check_count(line, collective[1], len(group))
    return found


def _check_count(line: str, kind: str, ranks: int) -> None:
    """Raises if an array has more elements, or a message more bytes, than `_MOST`: jaxlib passes 32-bit counts."""
    for dtype, dims in _SHAPE.findall(line.partition(f" {kind}")[0]):
        count = int(np.prod([int(dim) for dim in dims.split(",") if dim], dtype=np.float64))
        if kind in _MESSAGES:
            count *= max(1, int(re.sub(r"\D", "", dtype.partition("e")[0]) or 8) // 8)
        if kind == "all-gather":
            count //= ranks
        if count > _MOST:
            raise JaxcommError(
                f"{kind} of {dtype}[{dims}]: jaxlib counts at most {_MOST} elements, or bytes of a message.\n"
                "  Cure: split the array, or unset JAXCOMM_EVERY_COLLECTIVE."
            )


def _parse(words: str) -> Iterator[tuple[int, ...]]:
    if words == "{}":
        return
    if re.fullmatch(r"\{\{[\d,{}]*\}\}", words):
        for group in words[2:-2].split("},{"):
            yield tuple(map(int, group.split(",")))
    elif _IOTA.match(words):
        yield from map(tuple, _iota(words).tolist())
    elif mesh := _MESH.match(words):
        yield from _of_mesh(*mesh.groups())
    else:
        raise JaxcommError(
            f"groups of devices that jaxcomm cannot read: replica_groups={words}.\n"
            "  Cure: unset JAXCOMM_EVERY_COLLECTIVE, and report this line."
        )


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def _iota(words: str) -> np.ndarray:
    """Parses `[2,2]<=[4]`, or with a transposition `[2,2]<=[2,2]T(1,0)`."""
    match = _IOTA.match(words)
    assert match
    shape, reshaped, transposed = match.groups()
    numbers = np.arange(np.prod(_numbers(reshaped))).reshape(_numbers(reshaped))
    return (numbers.transpose(_numbers(transposed)) if transposed else numbers).reshape(_numbers(shape))


def _of_mesh(axes: str, device_ids: str | None, chosen: str) -> Iterator[tuple[int, ...]]:
    """Parses `mesh['a'=2,'b'=4] {'a'}`. `{'b':(m)k}` splits axis b into m × k × rest and chooses the factor k."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
    count = int(np.prod([*sizes.values()]))
    if device_ids is None:
        devices = np.arange(count)
    elif _IOTA.match(device_ids):
        devices = _iota(device_ids).reshape(-1)
    elif shorter := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", device_ids):
        numbers = np.arange(count).reshape(_numbers(shorter[1]))
        devices = (numbers.transpose(_numbers(shorter[2])) if shorter[2] else numbers).reshape(-1)
    else:
        devices = np.array(_numbers(device_ids))
    parts = {
        name: (int(before or 1), int(size or 0))
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen)
    }
    shape: list[int] = []
    inside: list[bool] = []
    order: dict[str, int] = {}
    for name, size in sizes.items():
        before, inner = parts.get(name, (1, 0))
        inner = inner or (size if name in parts else 1)
        for factor, is_inside in ((before, False), (inner, name in parts), (size // before // inner, False)):
            if is_inside:
                order[name] = len(shape)
            inside.append(is_inside)
            shape.append(factor)
    outer = [axis for axis, is_inside in enumerate(inside) if not is_inside]
    grouped = devices.reshape(shape).transpose(outer + [order[name] for name in parts])
    width = int(np.prod([shape[order[name]] for name in parts]))
    yield from map(tuple, grouped.reshape(-1, width).tolist())
