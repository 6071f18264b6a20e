"""Independent readers of exported files. They execute a file, and report what is wrong with it.

Blocks run in a random interleaving. The file's own signals, messages and dependences must order each access to a chunk
after all conflicting accesses. Vector clocks check this order, so one run finds every race, even if the race did not
change the result. Values are integers in which each rank's contribution to each chunk has digits of its own.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any
from xml.etree import ElementTree

Clock = dict[Any, int]
Cell = tuple[int, str, int]  # rank, buffer, chunk
Steps = Iterator[bool]  # yields whether the block made a step


class WrongError(Exception):
    """The file has a race, hangs, or computes a wrong result."""


class Memory:
    """All chunks, with the last accesses to each. If blocks share a chunk, each part counts as a chunk."""

    def __init__(self, ranks: int, chunks: int) -> None:
        self._start = [[1 << (16 * (rank * chunks + chunk)) for chunk in range(chunks)] for rank in range(ranks)]
        self.held = {(rank, "i", c): value for rank, row in enumerate(self._start) for c, value in enumerate(row)}
        self._written: dict[Cell, tuple[Any, int]] = {}
        self._read: dict[Cell, list[tuple[Any, int]]] = defaultdict(list)

    def read(self, cell: Cell, who: Any, clock: Clock) -> int:
        self._ordered(cell, clock, [self._written[cell]] if cell in self._written else [])
        self._read[cell].append((who, clock[who]))
        if cell not in self.held:
            raise WrongError(f"{who} reads {cell}, which nobody has written")
        return self.held[cell]

    def write(self, cell: Cell, value: int, who: Any, clock: Clock) -> None:
        self._ordered(
            cell, clock, [*self._read.pop(cell, []), *([self._written[cell]] if cell in self._written else [])]
        )
        self.held[cell], self._written[cell] = value, (who, clock[who])

    def check_sums(self, calls: int = 1, missing: Collection[int] = (), chunks: range | None = None) -> None:
        """Checks that all ranks hold the sum; with `missing`, that some rank holds the sum of all other ranks."""
        ranks = range(len(self._start))
        for chunk in chunks or range(len(self._start[0])):
            total = sum(self._start[rank][chunk] for rank in ranks if rank not in missing) * len(ranks) ** (calls - 1)
            right = [self.held[rank, "i", chunk] == total for rank in ranks]
            if not (any(right) if missing else all(right)):
                raise WrongError(f"chunk {chunk} is not the sum: ranks {[r for r in ranks if not right[r]]}")

    @staticmethod
    def _ordered(cell: Cell, clock: Clock, before: list[tuple[Any, int]]) -> None:
        for other, when in before:
            if clock.get(other, 0) < when:
                raise WrongError(f"{other} and somebody else race for {cell}")


def run(blocks: list[Steps], dice: random.Random) -> bool:
    """Runs blocks in turns until all have ended or none can continue. Returns whether all have ended."""
    while blocks:
        moved = False
        for block in dice.sample(blocks, len(blocks)):
            for _ in range(dice.choice((1, 1, 2, 50))):
                step = next(block, None)
                if step is None:
                    blocks.remove(block)
                moved |= step is not False
                if not step:
                    break
        if not moved:
            return False
    return True


def join(clock: Clock, other: Clock) -> None:
    for who, when in other.items():
        clock[who] = max(when, clock.get(who, 0))


class Mscclpp:
    """An MSCCL++ execution plan. GPUs run `calls` calls, and do not wait for each other between calls."""

    def __init__(self, text: str, seed: int = 0, calls: int = 1) -> None:
        gpus = json.loads(text)["gpus"]
        ops = [op for gpu in gpus for block in gpu["threadblocks"] for op in block["ops"] if "src_buff" in op]
        [self._parts] = {op.get("tbg_info", {"tbg_size": 1})["tbg_size"] for op in ops}
        self.memory = Memory(len(gpus), gpus[0]["input_chunks"] * self._parts)
        self._gpus, self._dice, self._calls = gpus, random.Random(seed), calls
        self._tokens: dict[tuple[int, int], deque[Clock]] = defaultdict(deque)  # by the receiver's rank and channel
        self._ended: dict[tuple[int, int], list[Clock]] = defaultdict(list)  # (rank, call) -> clocks of ended blocks
        ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        for gpu in gpus:
            for channel, peer in enumerate(gpu["channels"][0]["connected_to"]):
                ends[gpu["id"], peer].append(channel)
        self._end = {
            (a, channel): (b, ends[b, a][place])
            for (a, b), channels in ends.items()
            for place, channel in enumerate(channels)
        }

    def run(self, late: Collection[int] = ()) -> bool:
        """Runs all GPUs except the late ones. Returns whether all their blocks have ended."""
        gpus = [gpu for gpu in self._gpus if gpu["id"] not in late]
        ended = run([self._block(gpu, block) for gpu in gpus for block in gpu["threadblocks"]], self._dice)
        if ended and any(self._tokens.values()):
            raise WrongError("signals are left for which nobody waited")
        return ended

    def _block(self, gpu: dict[str, Any], block: dict[str, Any]) -> Steps:
        clock: Clock = {(gpu["id"], block["id"]): 0}
        for call in range(self._calls):
            yield from self._call(gpu, block, clock)
            ended = self._ended[gpu["id"], call]
            ended.append(dict(clock))
            while len(ended) < len(gpu["threadblocks"]):
                yield False
            for known in ended:
                join(clock, known)

    def _call(self, gpu: dict[str, Any], block: dict[str, Any], clock: Clock) -> Steps:
        rank, who = gpu["id"], (gpu["id"], block["id"])
        channels = block["channels"][0]["channel_ids"]
        remote = [i for refs in block["remote_buffer_refs"] for i in refs["remote_buffer_ids"]]
        waited, loose = False, {"read": set(), "write": set()}  # since the last barrier of the block's threads

        def cell(buffer: dict[str, Any], part: int) -> Cell:
            index = buffer["index"] * self._parts + part
            if "buffer_id" in buffer:
                there = gpu["remote_buffers"][remote[buffer["buffer_id"]]]
                return there["rank"], there["type"], index
            return rank, buffer["type"], index

        for op in block["ops"]:
            clock[who] += 1
            name = op["name"]
            if name == "nop":
                waited, loose = False, {"read": set(), "write": set()}
            elif name == "wait":
                for channel in op["channel_ids"]:
                    tokens = self._tokens[rank, channels[channel]]
                    while not tokens:
                        yield False
                    join(clock, tokens.popleft())
                waited = True
            elif name == "signal":
                if loose["read"] | loose["write"]:
                    raise WrongError(f"{who} signals before all its threads have finished")
                for channel in op["channel_ids"]:
                    self._tokens[self._end[rank, channels[channel]]].append(dict(clock))
            else:
                part = op.get("tbg_info", {"tb_id": 0})["tb_id"]
                src, dst = [cell(b, part) for b in op["src_buff"]], [cell(b, part) for b in op["dst_buff"]]
                if waited:
                    raise WrongError(f"{who} goes on before all its threads know that it has waited")
                if set(src) & loose["write"] or set(dst) & (loose["write"] | loose["read"]):
                    raise WrongError(f"threads of {who} race with each other")
                loose["read"] |= set(src)
                loose["write"] |= set(dst)
                values = [self.memory.read(place, who, clock) for place in src]
                results = {"put": values, "copy": values, "re": [sum(values)], "res": [sum(values)] * len(dst)}[name]
                for place, value in zip(dst, results, strict=True):
                    self.memory.write(place, value, who, clock)
            yield True


class MscclXml:
    """An MSCCL algorithm. Every connection holds only one message, fewer than in MSCCL."""

    def __init__(self, text: str, seed: int = 0) -> None:
        self._gpus = ElementTree.fromstring(text).findall("gpu")
        self.memory = Memory(len(self._gpus), int(self._gpus[0].attrib["i_chunks"]))
        self._dice = random.Random(seed)
        self._links: dict[tuple[str, ...], deque[tuple[list[int], Clock]]] = defaultdict(deque)
        self._flags: dict[tuple[int, int], list[tuple[int, Clock]]] = defaultdict(list)

    def run(self, late: Collection[int] = ()) -> bool:
        """Runs all GPUs except the late ones. Returns whether all their blocks have ended."""
        gpus = [gpu.attrib["id"] for gpu in self._gpus if int(gpu.attrib["id"]) not in late]
        ended = run([self._block(gpu, tb) for gpu in gpus for tb in self._gpus[int(gpu)]], self._dice)
        if ended and any(self._links.values()):
            raise WrongError("messages are left that nobody took")
        return ended

    def _block(self, gpu: str, tb: ElementTree.Element) -> Steps:
        rank, who = int(gpu), (int(gpu), int(tb.attrib["id"]))
        clock: Clock = {who: 0}
        out = self._links[gpu, tb.attrib["send"], tb.attrib["chan"]]
        into = self._links[tb.attrib["recv"], gpu, tb.attrib["chan"]]
        for number, step in enumerate(tb):
            clock[who] += 1
            needs = rank, int(step.attrib["depid"])
            while needs[1] >= 0:
                found = [known for flag, known in self._flags[needs] if flag >= int(step.attrib["deps"])]
                if found:
                    join(clock, found[0])
                    break
                yield False
            kind = step.attrib["type"]
            src, dst = [
                [
                    (rank, step.attrib[f"{end}buf"], int(step.attrib[f"{end}off"]) + i)
                    for i in range(int(step.attrib["cnt"]))
                ]
                for end in ("src", "dst")
            ]
            if kind == "s":
                while out:
                    yield False
                out.append(([self.memory.read(cell, who, clock) for cell in src], dict(clock)))
            elif kind in ("r", "rrc"):
                while not into:
                    yield False
                values, known = into.popleft()
                join(clock, known)
                for cell, own, value in zip(dst, src, values, strict=True):
                    held = self.memory.read(own, who, clock) if kind == "rrc" else 0
                    self.memory.write(cell, held + value, who, clock)
            elif kind != "nop":
                raise WrongError(f"unknown step {kind}")
            if step.attrib["hasdep"] == "1":
                self._flags[who].append((number, dict(clock)))
            yield True


def executed(machine: Callable[..., Any], text: str, **options: Any) -> None:
    """Runs a file to its end.

    Raises:
      WrongError: the file has a race, hangs, or is no allreduce.
    """
    made = machine(text, **options)
    if not made.run():
        raise WrongError("hangs")
    made.memory.check_sums(options.get("calls", 1))
