"""Proves that the messages of all ranks compute a collective, by executing them on sets of contributions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, NoReturn, get_args

from jaxcomm.errors import PlanError
from jaxcomm.program.contributions import CURE
from jaxcomm.program.messages import BUFFER, Add, RankMessages, Receive, Round, Send
from jaxcomm.program.verifier import Proof
from jaxcomm.schedules.schedule import CollectiveKind

_NOTHING = 0  # the value of a chunk that a rank does not hold


def verify_messages(messages: Sequence[RankMessages], collective: CollectiveKind = "all_reduce") -> Proof:
    """Proves that the messages give the collective's result, with the same bits on all ranks, whatever their speeds.

    The proof executes round by round. A round's messages are sent at once and in any order, then its sums are done,
    then the next round begins. An operation depends only on earlier operations of its rank's list and on messages. So
    ranks that run each operation as soon as possible get the same values, and do not deadlock.

    Args:
      messages: the messages of rank 0, rank 1, …
      collective: the result to prove. After "all_reduce" every rank has the sum of every chunk, after "reduce_scatter"
        rank c has the sum of chunk c, and after "all_gather" every rank has chunk c as rank c had it. "reduce_scatter"
        and "all_gather" need one chunk per rank.

    Raises:
      PlanError: the mistake, with the rank, its round and the chunk. Rounds are counted in that rank's list, from 0.
    """
    _check_sizes(messages, collective)
    for each in messages:
        for index, round_ in enumerate(each.rounds):
            _check_round(each, index, round_)
    run = _Replay(messages, collective, _match(messages))
    run.finish()
    run.check_result()
    counts = {
        "messages": sum(len(round_.sends) for each in messages for round_ in each.rounds),
        "sums": sum(len(round_.adds) for each in messages for round_ in each.rounds),
    }
    return Proof(f"{collective} by messages", len(messages), messages[0].chunks, counts, "execution of every round")


class _Match(NamedTuple):
    """A send and its matching receive. `sent` is the sender's round, `received` is the receiver's round."""

    src: int
    sent: int
    dst: int
    received: int
    chunk: int
    place: int


def _check_sizes(messages: Sequence[RankMessages], collective: CollectiveKind) -> None:
    if collective not in get_args(CollectiveKind):
        raise ValueError(f"collective is {collective!r}; it must be one of {', '.join(get_args(CollectiveKind))}")
    if not messages:
        raise PlanError(f"messages: there is no rank.{CURE}")
    ranks, chunks = len(messages), messages[0].chunks
    for index, each in enumerate(messages):
        if (each.ranks, each.rank, each.chunks) != (ranks, index, chunks):
            raise PlanError(
                f"messages: list {index} is for rank {each.rank} of {each.ranks}, with {each.chunks} chunks; it must "
                f"be for rank {index} of {ranks}, with {chunks}.{CURE}"
            )
    if collective != "all_reduce" and chunks != ranks:
        raise PlanError(f"messages: {collective} of {ranks} ranks needs {ranks} chunks; there are {chunks}.{CURE}")


def _check_round(each: RankMessages, index: int, round_: Round) -> None:
    """Raises PlanError for an index out of range, an empty sum, or a message that overwrites another one's memory."""
    both: tuple[Send | Receive, ...] = (*round_.sends, *round_.receives)
    for message in both:
        if not 0 <= message.peer < each.ranks or message.peer == each.rank:
            _refuse(each.rank, index, f"{_name(message)} is not with one of the {each.ranks - 1} other ranks")
    entries: tuple[Send | Receive | Add, ...] = (*both, *round_.adds)
    for entry in entries:
        if not 0 <= entry.chunk < each.chunks:
            _refuse(each.rank, index, f"{_name(entry)} is not for one of the {each.chunks} chunks")
    for add in round_.adds:
        if not add.places:
            _refuse(each.rank, index, f"{_name(add)} has no operand")
        if not all(0 <= place <= each.slots for place in add.places):
            _refuse(each.rank, index, f"{_name(add)} reads {list(add.places)}; places are 0 to {each.slots}")
    sent = {send.chunk for send in round_.sends}
    written: set[tuple[int, int]] = set()
    for receive in round_.receives:
        if not 0 <= receive.place <= each.slots:
            _refuse(each.rank, index, f"{_name(receive)} goes to place {receive.place}; they are 0 to {each.slots}")
        if receive.place == BUFFER and receive.chunk in sent:
            _refuse(each.rank, index, f"{_name(receive)} overwrites the chunk while it is sent")
        memory = (receive.place, receive.chunk if receive.place == BUFFER else 0)
        if memory in written:
            _refuse(each.rank, index, f"{_name(receive)} goes to the place of another message of the round")
        written.add(memory)


def _match(messages: Sequence[RankMessages]) -> list[list[list[_Match]]]:
    """The matching sends and receives, by rank and round. Rank a's i-th send to b matches b's i-th receive from a."""
    sends: dict[tuple[int, int], list[tuple[int, Send]]] = defaultdict(list)
    receives: dict[tuple[int, int], list[tuple[int, Receive]]] = defaultdict(list)
    for each in messages:
        for index, round_ in enumerate(each.rounds):
            for send in round_.sends:
                sends[each.rank, send.peer].append((index, send))
            for receive in round_.receives:
                receives[receive.peer, each.rank].append((index, receive))
    found: list[list[list[_Match]]] = [[[] for _ in each.rounds] for each in messages]
    for src, dst in sorted(sends.keys() | receives.keys()):
        out, into = sends[src, dst], receives[src, dst]
        for (sent, send), (received, receive) in zip(out, into, strict=False):
            if send.chunk != receive.chunk:
                problem = f"matches the receive of chunk {receive.chunk} in round {received} of rank {dst}"
                _refuse(src, sent, f"{_name(send)} {problem}")
            match = _Match(src, sent, dst, received, send.chunk, receive.place)
            found[src][sent].append(match)
            found[dst][received].append(match)
        if len(out) > len(into):
            sent, send = out[len(into)]
            _refuse(src, sent, f"{_name(send)} has no matching receive")
        if len(into) > len(out):
            received, receive = into[len(out)]
            _refuse(dst, received, f"{_name(receive)} has no matching send")
    return found


class _Replay:
    """Executes the messages of all ranks. A value is a number: equal numbers stand for equal bits."""

    def __init__(
        self, messages: Sequence[RankMessages], collective: CollectiveKind, matches: list[list[list[_Match]]]
    ) -> None:
        self._messages, self._collective, self._matches = messages, collective, matches
        ranks, chunks = range(len(messages)), range(messages[0].chunks)
        self._contributions = [0, *(1 << rank for rank in ranks)]  # value -> the contributing ranks, as bits
        self._sums: dict[tuple[int, ...], int] = {}  # the values in order of addition -> their sum
        gathered = collective == "all_gather"
        self._held = [[rank + 1 if chunk == rank or not gathered else _NOTHING for chunk in chunks] for rank in ranks]
        self._slots: list[dict[int, tuple[int, int]]] = [{} for _ in ranks]  # place -> chunk and value
        self._round = [-1] * len(messages)
        self._unsent = [0] * len(messages)  # number of messages of the rank's current round not moved yet

    def finish(self) -> None:
        """Runs every rank to the end of its list."""
        done = list(range(len(self._messages)))  # ranks that have finished their round
        while done:
            rank = done.pop()
            if self._round[rank] >= 0:
                self._add(rank)
            self._round[rank] += 1
            if self._round[rank] == len(self._messages[rank].rounds):
                continue
            matches = self._matches[rank][self._round[rank]]
            self._unsent[rank] = len(matches)
            if not matches:
                done.append(rank)
            for match in matches:
                if self._is_due(match):
                    self._move(match)
                    for end in (match.src, match.dst):
                        self._unsent[end] -= 1
                        if not self._unsent[end]:
                            done.append(end)
        stuck = [rank for rank, each in enumerate(self._messages) if self._round[rank] < len(each.rounds)]
        if stuck:
            self._refuse_deadlock(stuck[0])

    def check_result(self) -> None:
        """Raises PlanError unless every rank has the collective's result."""
        everybody = (1 << len(self._messages)) - 1
        for rank, held in enumerate(self._held):
            for chunk in [rank] if self._collective == "reduce_scatter" else range(len(held)):
                expected = 1 << chunk if self._collective == "all_gather" else everybody
                if missing := expected & ~self._contributions[held[chunk]]:
                    self._refuse_result(rank, chunk, f"lacks the contribution of ranks {_members(missing)}")
                if extra := self._contributions[held[chunk]] & ~expected:
                    self._refuse_result(rank, chunk, f"also has the contribution of ranks {_members(extra)}")
                if self._collective == "all_reduce" and held[chunk] != self._held[0][chunk]:
                    problem = "was added up in another order than on rank 0, so that their bits may differ"
                    self._refuse_result(rank, chunk, problem)

    def _is_due(self, match: _Match) -> bool:
        return self._round[match.src] == match.sent and self._round[match.dst] == match.received

    def _move(self, match: _Match) -> None:
        value = self._held[match.src][match.chunk]
        if not value:
            _refuse(match.src, match.sent, f"the send of chunk {match.chunk} to rank {match.dst} has nothing to send")
        if match.place == BUFFER:
            self._held[match.dst][match.chunk] = value
        else:
            self._slots[match.dst][match.place] = match.chunk, value

    def _add(self, rank: int) -> None:
        """Executes the sums at the end of the rank's round."""
        held, slots, round_ = self._held[rank], self._slots[rank], self._round[rank]
        for add in self._messages[rank].rounds[round_].adds:
            terms, together = [], 0
            for place in add.places:
                chunk, value = (add.chunk, held[add.chunk]) if place == BUFFER else slots.get(place, (-1, _NOTHING))
                if not value or chunk != add.chunk:
                    problem = f"place {place}, which holds {f'chunk {chunk}' if value else 'nothing'}"
                    _refuse(rank, round_, f"{_name(add)} reads {problem}")
                if twice := together & self._contributions[value]:
                    _refuse(rank, round_, f"{_name(add)} adds the contribution of ranks {_members(twice)} twice")
                together |= self._contributions[value]
                terms.append(value)
            if len(terms) == 1:
                held[add.chunk] = terms[0]
                continue
            held[add.chunk] = self._sums.setdefault(tuple(terms), len(self._contributions))
            if held[add.chunk] == len(self._contributions):
                self._contributions.append(together)

    def _refuse_deadlock(self, rank: int) -> NoReturn:
        """Follows the waits from a waiting rank until a rank repeats, and reports the cycle."""
        waits: dict[int, _Match] = {}
        while rank not in waits:
            waits[rank] = next(m for m in self._matches[rank][self._round[rank]] if not self._is_due(m))
            rank = waits[rank].dst if rank == waits[rank].src else waits[rank].src
        cycle = [*waits][[*waits].index(rank) :]
        match = waits[rank]
        sends = rank == match.src
        other, when = (match.dst, match.received) if sends else (match.src, match.sent)
        name = _name(Send(other, match.chunk) if sends else Receive(other, match.chunk, match.place))
        problem = (
            f"{name} waits for round {when} of rank {other}, which waits for this round: ranks {sorted(cycle)} wait"
        )
        _refuse(rank, self._round[rank], f"{problem} for each other for ever")

    def _refuse_result(self, rank: int, chunk: int, problem: str) -> NoReturn:
        rounds = len(self._messages[rank].rounds)
        raise PlanError(f"messages: rank {rank}: at the end, after {rounds} rounds, chunk {chunk} {problem}.{CURE}")


def _name(entry: Send | Receive | Add) -> str:
    match entry:
        case Send(peer, chunk):
            return f"the send of chunk {chunk} to rank {peer}"
        case Receive(peer, chunk):
            return f"the receive of chunk {chunk} from rank {peer}"
        case Add(chunk):
            return f"the sum of chunk {chunk}"


def _members(ranks: int) -> list[int]:
    return [rank for rank in range(ranks.bit_length()) if ranks >> rank & 1]


def _refuse(rank: int, round_: int, problem: str) -> NoReturn:
    raise PlanError(f"messages: rank {rank}: round {round_}: {problem}.{CURE}")
