"""Proves that a schedule, a template or a program computes the sum, by execution on sets of contributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import PlanError
from jaxcomm.program.checked_table import check_ports, checked_precondition, checked_table
from jaxcomm.program.contributions import CURE, Contributions
from jaxcomm.program.program import MAX_RANKS, Program
from jaxcomm.program.races import ChunkRun
from jaxcomm.schedules import Op, Schedule, Template, broadcast, chain, hybrid, ring, straggler
from jaxcomm.schedules.one_late_rank import straggler_table
from jaxcomm.schedules.reduce_scatter import reduce_scatter
from jaxcomm.schedules.schedule import Table

_BLOCK = 1 << 24  # approximate bytes of contribution sets in memory at a time


@dataclass(frozen=True)
class Proof:
    """A proof that every rank ends with every contribution to every chunk, each exactly once.

    Attributes:
      subject: kind of the schedule, "template", or "program".
      ranks: number of ranks.
      chunks: number of chunks.
      counts: the number of proved parts, such as {"rounds": 9, "transfers": 56}.
      method: the method of the proof.
    """

    subject: str
    ranks: int
    chunks: int
    counts: Mapping[str, int]
    method: str

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{self.subject}: {self.ranks} ranks, {self.chunks} chunks, {counts}; proved by {self.method}"


def verify_schedule(schedule: Schedule) -> Proof:
    """Proves that the schedule, after its precondition, gives every rank the result of the schedule's collective.

    The proof checks all transfers: indices are in range; ports, rounds and volume are as declared; the precondition
    does not involve the late rank; no transfer reads a value that a ReduceScatter leaves as garbage; every contribution
    counts exactly once. If a broadcast, chain, hybrid or straggler schedule equals the result of its constructor, the
    proof instead checks its parts, such as its template.

    Raises:
      PlanError: the mistake, with the kind of the schedule, the round, the ranks and the chunk.
    """
    if not 2 <= schedule.ranks <= MAX_RANKS or schedule.num_chunks < 1:
        raise PlanError(
            f"{schedule.kind}: {schedule.ranks} ranks and {schedule.num_chunks} chunks; "
            f"there must be 2 to {MAX_RANKS} ranks and at least one chunk.{CURE}"
        )
    for rank in sorted(schedule.late_ranks):
        if not 0 <= rank < schedule.ranks:
            raise PlanError(f"{schedule.kind}: its late rank {rank} is not one of {schedule.ranks} ranks.{CURE}")
    if schedule.collective != "all_reduce" and schedule.num_chunks != schedule.ranks:
        raise PlanError(f"{schedule.kind}: {schedule.collective} of {schedule.ranks} ranks needs as many chunks.{CURE}")
    if _is_composed(schedule):
        return _compose(schedule)
    if schedule.template:
        raise PlanError(f"{schedule.kind}: it is not the schedule that its template and sizes define.{CURE}")
    return _execute(schedule)


def verify_template(template: Template, chunks: int) -> Proof:
    """Proves that a straggler schedule of `chunks` chunks with this template spreads every chunk to all ranks.

    `Template` defines offsets and ages. Chunk c moves from round c on. If all its moves are before round `chunks`, the
    template determines them. For all such chunks three properties are enough: every offset sends once and receives
    once, so port limits hold; the receivers, dst + age, are all ranks except the chunk's owner; the sender of a chunk
    has received the chunk before. The transfers of the remaining chunks, which are the last chunks, are executed.

    Raises:
      PlanError: the template does not spread a chunk to every rank, or makes a rank send a chunk that it does not hold
        yet.
    """
    ranks, others, ages = template.ranks, template.ranks - 1, len(template.colours)
    if chunks < 2:
        raise PlanError(f"template: {chunks} chunks; a template serves 2 or more.")
    since: dict[int, int] = {0: 0}  # distance from the chunk's owner -> the age at which the chunk arrives
    for step in template.among:
        distance = (step.dst + step.age) % others
        if distance in since:
            raise PlanError(f"template: {step} brings a chunk to a rank that also gets it in another row.{CURE}")
        since[distance] = step.age
    if len(since) < others:
        raise PlanError(f"template: a chunk reaches {len(since)} of {others} ranks.{CURE}")
    for step in (*template.among, template.home):
        if step.age and since[(step.src + step.age) % others] >= step.age:
            raise PlanError(f"template: {step} sends a chunk that its sender does not hold yet.{CURE}")

    first = max(0, chunks - ages)
    tail = straggler_table(ranks, others, chunks, template, first)
    expected = chunks - 1 + others.bit_length()
    rounds, volume = check_ports("template", tail[tail[:, 0] >= first], 1)
    if (rounds, volume) != (expected, expected - first):
        raise PlanError(f"template: {rounds} rounds for {chunks} chunks; there must be {expected}.{CURE}")
    held = Contributions("template", ranks, chunks - first, first)
    held.reduce_scatter(late=others)
    held.run(tail)
    held.check_complete()
    counts = {"rounds": rounds, "transfers": ranks * chunks}
    return Proof("template", ranks, chunks, counts, "its rotation, and execution of the last chunks")


def verify_program(program: Program | bytes, schedule: Schedule | None = None) -> Proof:
    """Proves that an AllReduce program gives every rank the sum, with the same bits, whatever the ranks' speeds.

    Args:
      program: the program, or its encoding.
      schedule: the schedule that the program implements. Sizes must agree. The sums of the schedule's precondition must
        come from operations that neither involve the late rank nor wait for an operation that involves it.

    Raises:
      PlanError: the mistake, with the operations, the rank and the chunk.
    """
    program = Program.decode(program.encode() if isinstance(program, Program) else program)
    ranks, chunks = program.ranks, program.chunks
    if schedule and (schedule.ranks, schedule.num_chunks) != (ranks, chunks):
        raise PlanError(
            f"program: it is for {ranks} ranks and {chunks} chunks, "
            f"the schedule for {schedule.ranks} and {schedule.num_chunks}.{CURE}"
        )
    stages = [(phase, after.late_ranks) for phase, after in pairwise(schedule.phases)] if schedule else []
    early = [0] * len(stages)
    left = _additions(stages, chunks)
    for indices, alike in _alike_chunks(program):
        run = ChunkRun(alike[0], ranks)
        soon: list[dict[int, bool]] = [{} for _ in stages]
        for index in indices:
            op = program.ops[index]
            run.step(index, op)
            for stage, (_, late) in enumerate(stages):
                free = late.isdisjoint((op.rank, *op.reads, *op.writes))
                soon[stage][index] = free and all(soon[stage].get(other, False) for other in op.waits)
                early[stage] += soon[stage][index] * len(alike)
                if soon[stage][index]:
                    left[stage][alike] -= len(op.reads) - 1
        run.check_complete()
    for (_, late), waiting in zip(stages, left, strict=True):
        if (waiting > 0).any():
            chunk = int((waiting > 0).argmax())
            raise PlanError(f"program: chunk {chunk} of the others is not reduced before {_late_text(late)}.{CURE}")
    counts = {"operations": len(program.ops)} | ({"of them early": early[0]} if early else {})
    return Proof("program", ranks, chunks, counts, "execution of every operation, free of races")


def _additions(stages: Sequence[tuple[Schedule, frozenset[int]]], chunks: int) -> list[NDArray[np.int64]]:
    """For every phase but the last, the number of additions to each chunk up to the end of this phase."""
    counts = [
        np.bincount(rows[rows[:, 4] == Op.REDUCE][:, 3], minlength=chunks) for rows in (p.table() for p, _ in stages)
    ]
    return [np.sum(counts[: end + 1], axis=0) for end in range(len(counts))]


def _alike_chunks(program: Program) -> list[tuple[list[int], list[int]]]:
    """Finds the sets of chunks whose operations differ only in the chunk.

    Returns, for each set, the operations of its first chunk and the chunks themselves. Operations on different chunks
    cannot conflict, so waits between them are ignored.
    """
    indices: list[list[int]] = [[] for _ in range(program.chunks)]
    position: list[int] = []
    for index, op in enumerate(program.ops):
        position.append(len(indices[op.chunk]))
        indices[op.chunk].append(index)
    found: dict[tuple[object, ...], list[int]] = {}
    for chunk, own in enumerate(indices):
        ops = (program.ops[index] for index in own)
        same = tuple(
            (op.rank, op.reads, op.writes, *(position[w] if program.ops[w].chunk == chunk else -1 for w in op.waits))
            for op in ops
        )
        found.setdefault(same, []).append(chunk)
    return [(indices[chunks[0]], chunks) for chunks in found.values()]


def _late_text(late: frozenset[int]) -> str:
    names = ", ".join(map(str, sorted(late)))
    return f"the late rank {names} arrives" if len(late) == 1 else f"the late ranks {names} arrive"


def _is_composed(schedule: Schedule) -> bool:
    """Whether the schedule, and so its transfers, equals the result of one of the constructors below."""
    constructors: dict[str, Callable[..., Schedule]] = {
        "broadcast": broadcast,
        "chain": chain,
        "hybrid": hybrid,
        "straggler": straggler,
    }
    constructor = constructors.get(schedule.kind)
    try:
        return constructor is not None and schedule == constructor(*schedule.parameters)
    except (TypeError, ValueError):  # the constructor does not take these parameters
        return False


def _compose(schedule: Schedule) -> Proof:
    """Proves a composed schedule by proofs of the parts that its constructor combines."""
    ranks, late, *sizes = schedule.parameters
    counts = {"rounds": schedule.num_rounds, "chunks before": schedule.num_chunks}
    if schedule.kind == "broadcast":
        # First the other ranks run a ring. Then every chunk moves like the single chunk of `straggler`. When the late
        # rank arrives, all other ranks have their sum in `broadcast`, but only one of them has it in `straggler`. The
        # proof of `straggler` therefore covers `broadcast`.
        parts = [straggler(ranks, late, 1)] + ([ring(ranks - 1)] if ranks > 2 else [])
    elif schedule.kind == "hybrid":
        chunks, covered, template = sizes
        counts["chunks before"] = covered
        parts = [straggler(ranks, late, covered, template)] + ([ring(ranks)] if covered < chunks else [])
    elif schedule.kind == "chain" and schedule.num_chunks >= ranks:
        # Until the last rank arrives, chunk c moves like chunk c mod N (N = n - 1). Then all chunks move as in
        # `straggler`.
        chunks, template = sizes
        verify_template(template, chunks)
        parts = [chain(ranks, late, ranks - 1, template)]
    elif schedule.template:
        verify_template(schedule.template, schedule.num_chunks)
        # In the ReduceScatter chunk c moves like chunk 0, with c added (mod N) to the indices of the N other ranks.
        distinct = min(schedule.num_chunks, ranks - 1)
        checked_table(reduce_scatter(ranks, late, distinct, distinct))
        parts = [straggler(ranks, late, 1)]
    else:
        return _execute(schedule)
    for part in parts:
        verify_schedule(part)
    return Proof(schedule.kind, ranks, schedule.num_chunks, counts, "its parts")


def _execute(schedule: Schedule) -> Proof:
    """Proves a schedule by executing its transfers, or only chunk 0's if every chunk is a rotation of chunk 0."""
    kind, ranks, chunks, before = schedule.kind, schedule.ranks, schedule.num_chunks, schedule.precondition
    table = checked_table(schedule)
    stages = [(checked_precondition(before, after), after.late_ranks) for before, after in pairwise(schedule.phases)]
    counts = {"rounds": schedule.num_rounds, "transfers": len(table)}
    if stages:
        counts["transfers before"] = sum(len(early) for early, _ in stages)
    if before is None and _chunks_are_rotations(table, ranks, chunks):
        table, chunks = table[table[:, 3] == 0], 1
    width = max(1, _BLOCK // (max(len(table) // chunks, ranks) * -(-ranks // 64) * 8))
    for first in range(0, chunks, width):
        held = Contributions(kind, ranks, min(width, chunks - first), first, schedule.collective)
        for early, late in stages:
            own = early[(early[:, 3] >= first) & (early[:, 3] < first + width)]
            held.run(own)
            held.forget_incomplete(late, np.flatnonzero(np.bincount(own[:, 3])))
        held.run(table[(table[:, 3] >= first) & (table[:, 3] < first + width)])
        held.check_complete()
    return Proof(kind, ranks, schedule.num_chunks, counts, "execution of every transfer")


def _chunks_are_rotations(table: Table, ranks: int, chunks: int) -> bool:
    """Whether each chunk c moves like chunk 0 with c added to all ranks mod n. Then the proof of chunk 0 is enough."""
    if chunks != ranks or not len(table) or len(table) % ranks:
        return False
    rounds = int(table[-1, 0]) + 1
    moves_per_chunk = rounds * ranks * ranks * len(Op)
    if ranks * moves_per_chunk > np.iinfo(np.int64).max:
        return False
    chunk = table[:, 3]
    move = chunk.astype(np.int64) * rounds + table[:, 0]
    for column in (1, 2):
        move = move * ranks + (table[:, column] - chunk) % ranks
    moves = np.sort(move * len(Op) + table[:, 4]).reshape(ranks, -1)
    moves -= np.arange(ranks)[:, None] * moves_per_chunk
    return bool((moves == moves[0]).all())
