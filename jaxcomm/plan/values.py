"""The parts of a plan, as frozen values. Times are in seconds, sizes in bytes of one rank's buffer."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.limits import MAX_ALTERNATIVES, MAX_CHUNKS, MAX_MOVES
from jaxcomm.program.program import MAX_RANKS

Ranks = Annotated[int, Field(ge=2, le=MAX_RANKS, strict=True)]
Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS, strict=True)]
Chunks = Annotated[int, Field(ge=1, le=MAX_CHUNKS, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**62, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e30, strict=True, allow_inf_nan=False)]
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
Hosts = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(fail_fast=True, max_length=65536)
]
Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Moves = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MAX_MOVES, strict=True)], ...], Field(fail_fast=True, max_length=MAX_MOVES)
]
Offsets = Annotated[
    tuple[Annotated[int, Field(ge=-1, le=MAX_RANKS, strict=True)], ...], Field(fail_fast=True, max_length=MAX_RANKS)
]


class Plain(Value):
    """A schedule that treats all ranks alike; "lax" is none of ours: `jax.lax`'s own collective runs."""

    kind: Literal["ring", "halving_doubling", "direct", "lax"]


class Nccl(Value):
    """NCCL's own allreduce on CUDA devices; elsewhere all ranks run the schedule `otherwise`."""

    kind: Literal["nccl"] = "nccl"
    otherwise: Literal["ring", "halving_doubling", "direct"]


class HalvingDoubling(Value):
    """Halving and doubling in an order of ranks that fits the hosts of `network.topology`."""

    kind: Literal["halving_doubling_by_hosts"] = "halving_doubling_by_hosts"
    order: Literal["by_host", "by_host_reversed", "dealt_out", "dealt_out_reversed"]


class Broadcast(Value):
    """The others allreduce while the late rank is away, swap the whole buffer with it, and pass it on."""

    kind: Literal["broadcast"] = "broadcast"
    late: RoleName


class StragglerSpec(Value):
    """The others reduce-scatter `chunks` chunks while the late rank is away; then it joins."""

    kind: Literal["straggler"] = "straggler"
    late: RoleName
    chunks: Chunks


class Hybrid(Value):
    """The first `covered` of `chunks` chunks by the straggler schedule, the rest by rings over all ranks."""

    kind: Literal["hybrid"] = "hybrid"
    late: RoleName
    chunks: Chunks
    covered: Chunks


class Transfers(Value):
    """The schedule `network.schedules[index]` of `chunks` chunks, which was solved for this plan's late rank."""

    kind: Literal["transfers"] = "transfers"
    late: RoleName
    chunks: Chunks
    index: Count


LateRoles = Annotated[tuple[RoleName, ...], Field(fail_fast=True, min_length=2, max_length=16)]


class Stragglers(Value):
    """The others reduce-scatter `chunks` chunks while the late ranks are away; then these join together."""

    kind: Literal["stragglers"] = "stragglers"
    late: LateRoles
    chunks: Chunks


class DirectJoin(Value):
    """The others reduce-scatter `chunks` chunks; then the late rank exchanges one with each of them at once."""

    kind: Literal["direct_join"] = "direct_join"
    late: RoleName
    chunks: Chunks


class LateJoin(Value):
    """The others allreduce while the late rank is away; then its `chunks` chunks go round them as a pipeline."""

    kind: Literal["late_join"] = "late_join"
    late: RoleName
    chunks: Chunks


class Hierarchical(Value):
    """Sums within the hosts of `network.topology`, then across them and their racks. Before the `late` ranks come, if
    there are any, their mates sum their part of `within` chunks, and the other hosts theirs of `across`."""

    kind: Literal["hierarchical"] = "hierarchical"
    chunks: Chunks
    late: Annotated[tuple[RoleName, ...], Field(fail_fast=True, max_length=16)] = ()
    within: Annotated[int, Field(ge=0, le=MAX_CHUNKS, strict=True)] = 0
    across: Annotated[int, Field(ge=0, le=MAX_CHUNKS, strict=True)] = 0


class HierarchicalHalves(Value):
    """The hierarchical reduce-scatter and all-gather of `network.topology`, as one all-reduce of a chunk per rank."""

    kind: Literal["hierarchical_halves"] = "hierarchical_halves"


class Chain(Value):
    """The others reduce-scatter `chunks` chunks; then the late ranks join one after the other, in this order."""

    kind: Literal["chain"] = "chain"
    late: LateRoles
    chunks: Chunks

    def least(self, ranks: int) -> Chain:
        """The chain of the chunks that stand for all of them until the last rank comes: later ones repeat them."""
        return self.model_copy(update={"chunks": min(self.chunks, ranks - 1)})


Spec = Annotated[
    Plain
    | Nccl
    | HalvingDoubling
    | Hierarchical
    | HierarchicalHalves
    | Broadcast
    | StragglerSpec
    | Hybrid
    | DirectJoin
    | LateJoin
    | Transfers
    | Stragglers
    | Chain,
    Field(discriminator="kind"),
]
Verdict = Literal[
    "chosen",
    "slower",
    "slower_here",
    "below_threshold",
    "not_timed",
    "window_taken",
    "calls_only",
    "too_many_ports",
    "ideal_delay",
]


class Alternative(Value):
    """A schedule that was considered for an entry, and what became of it.

    `seconds` is the mean over the profiled delays, from the late rank's arrival on, for the entry's reference size;
    `gain` is what that saves of the fastest schedule that cannot use a delay, as a share (negative: it is slower);
    `executor` is as in `Entry`.
    Verdicts:

      chosen           the entry's schedule
      slower           predicted to take longer than the chosen one
      slower_here      took longer than the chosen one, or did not gain on the default one, where they were run
      below_threshold  faster than every plain schedule, but by less than `assumptions.min_gain`
      not_timed        faster if times grow with bytes beyond the largest timed size, up to which they do not yet
      window_taken     worthwhile alone, but other buckets of the step use the same delay, or backward hides it anyway
      calls_only       worthwhile alone, but not considered for the buckets of a step, which this size is one of
      too_many_ports   needs more peers at once than `assumptions.ports`
      ideal_delay      not on offer: its time if the delay always covered the others' part
    """

    schedule: Spec
    seconds: Seconds
    gain: Number
    verdict: Verdict
    executor: ExecutorName | None = None


class Predicted(Value):
    """Predicted seconds of one call of `reference_bytes`, mean over the delays, from the late rank's arrival on.

    No allreduce takes less than `lower_bound` with one port per rank, which reaches `Assumptions.ports` peers at once.
    """

    reference_bytes: Count
    seconds: Seconds
    ring: Seconds
    halving_doubling: Seconds
    direct: Seconds
    broadcast: Seconds
    lower_bound: Seconds


class Candidate(Value):
    """A schedule and the time that its calls took."""

    schedule: Spec
    seconds: Seconds


class MeasuredTimes(Value):
    """Times of calls of `bytes` bytes, from the late rank's arrival on, which `jaxcomm plan --try` has measured.

    `seconds` is that of the entry's schedule, `default` that of calls without a plan, and `candidates` has those of the
    schedules that ran beside it, by turns. Where none of these was faster, the entry has the default one.
    """

    bytes: Count
    seconds: Seconds
    default: Seconds
    candidates: Annotated[tuple[Candidate, ...], Field(fail_fast=True, max_length=8)]


ANY_RANK: Final = "any"  # the role of whichever rank comes last to a call


class ScheduleSelector(Value):
    """Schedules, of which each call runs one, by how late `rank` comes.

    If it came less than `lateness_s` seconds after all others, the next call runs `early`, otherwise `late`. The first
    calls run `late`. With the rank "any" calls run `late` for the rank that has not come to them `lateness_s` seconds
    after all others, or `early` if all have. `seconds` is the predicted mean time of a call of the entry's reference
    size, from the late rank's arrival on.
    """

    rank: RoleName
    lateness_s: Annotated[float, Field(gt=0, le=1e30, strict=True, allow_inf_nan=False)]
    early: Spec
    late: Spec
    seconds: Seconds

    @property
    def by_turns(self) -> bool:
        """Whether any rank may be the late one."""
        return self.rank == ANY_RANK


class Entry(Value):
    """The schedule of calls of `min_bytes` to `max_bytes` bytes, both included; `max_bytes` null means no limit.

    Where ranks can know how late others came to the call before, `selector` selects the schedule, not `schedule`.
    `executor` "xla" has XLA's own collective-permutes run the schedule, on any platform; null: the platform's own
    executor, which is the core on CPUs.
    """

    min_bytes: Count
    max_bytes: Count | None
    schedule: Spec
    predicted: Predicted
    alternatives: Annotated[tuple[Alternative, ...], Field(fail_fast=True, max_length=MAX_ALTERNATIVES)] = ()
    selector: ScheduleSelector | None = None
    measured: MeasuredTimes | None = None
    executor: ExecutorName | None = None

    @property
    def specs(self) -> dict[str, Spec]:
        """All that its calls may run, by the place in the entry."""
        found: dict[str, Spec] = {"schedule": self.schedule}
        if self.selector:
            found |= {"selector.early": self.selector.early, "selector.late": self.selector.late}
        return found


class Matches(Value):
    """The calls that a plan is for; null matches all. Dtypes are JAX names such as "float32"; the topology is null."""

    ranks: Ranks
    dtypes: Annotated[tuple[Token, ...], Field(fail_fast=True, min_length=1, max_length=32)] | None = None
    topology: None = None  # files have it; nothing here could check that a topology is the plan's


class Rotation(Value):
    """The rotational template of this plan's straggler schedules (see `jaxcomm.schedules.Template`)."""

    ranks: Ranks
    colours: Annotated[Offsets, Field(max_length=32)]
    send_peer: Offsets
    send_age: Offsets
    receive_peer: Offsets
    receive_age: Offsets
