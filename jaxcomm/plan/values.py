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
    """A schedule that treats all ranks alike; "lax" runs `jax.lax`'s own collective instead of ours."""

    kind: Literal["ring", "halving_doubling", "direct", "lax"]


class Nccl(Value):
    """NCCL's own allreduce on CUDA devices. On other devices all ranks run the schedule `otherwise`."""

    kind: Literal["nccl"] = "nccl"
    otherwise: Literal["ring", "halving_doubling", "direct"]


class HalvingDoubling(Value):
    """Halving and doubling in an order of ranks that fits the hosts of the plan's `network.topology`."""

    kind: Literal["halving_doubling_by_hosts"] = "halving_doubling_by_hosts"
    order: Literal["by_host", "by_host_reversed", "dealt_out", "dealt_out_reversed"]


class Broadcast(Value):
    """The other ranks allreduce before the late rank arrives.

    Then the late rank exchanges the whole buffer with one other rank, and both ranks spread the sum to all.
    """

    kind: Literal["broadcast"] = "broadcast"
    late: RoleName


class StragglerSpec(Value):
    """The other ranks reduce-scatter `chunks` chunks. Then the late rank arrives, and sends one chunk per round."""

    kind: Literal["straggler"] = "straggler"
    late: RoleName
    chunks: Chunks


class Hybrid(Value):
    """The straggler schedule sums the first `covered` of `chunks` chunks; rings over all ranks sum the rest."""

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
    """The other ranks reduce-scatter `chunks` chunks before the late ranks arrive. Then all late ranks join at once."""

    kind: Literal["stragglers"] = "stragglers"
    late: LateRoles
    chunks: Chunks


class DirectJoin(Value):
    """The other ranks reduce-scatter `chunks` chunks. Then the late rank exchanges chunks with all of them at once."""

    kind: Literal["direct_join"] = "direct_join"
    late: RoleName
    chunks: Chunks


class LateJoin(Value):
    """The other ranks allreduce before the late rank arrives.

    Then the late rank's `chunks` chunks pass through all other ranks, as in a pipeline.
    """

    kind: Literal["late_join"] = "late_join"
    late: RoleName
    chunks: Chunks


class Hierarchical(Value):
    """The ranks sum within the hosts of `network.topology`, then between hosts and racks.

    Before the `late` ranks arrive, the punctual ranks on the late ranks' hosts sum their parts of `within` chunks. All
    other hosts sum their parts of `across` chunks.
    """

    kind: Literal["hierarchical"] = "hierarchical"
    chunks: Chunks
    late: Annotated[tuple[RoleName, ...], Field(fail_fast=True, max_length=16)] = ()
    within: Annotated[int, Field(ge=0, le=MAX_CHUNKS, strict=True)] = 0
    across: Annotated[int, Field(ge=0, le=MAX_CHUNKS, strict=True)] = 0


class HierarchicalHalves(Value):
    """A hierarchical reduce-scatter, then a hierarchical all-gather, on `network.topology`, with one chunk per rank."""

    kind: Literal["hierarchical_halves"] = "hierarchical_halves"


class Chain(Value):
    """The other ranks reduce-scatter `chunks` chunks. Then the late ranks join one by one, in the order of `late`."""

    kind: Literal["chain"] = "chain"
    late: LateRoles
    chunks: Chunks

    def least(self, ranks: int) -> Chain:
        """This chain, cut to N = ranks − 1 chunks. Until the last rank arrives, chunk c moves like chunk c mod N."""
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
    "kept_here",
    "below_threshold",
    "not_timed",
    "window_taken",
    "calls_only",
    "too_many_ports",
    "ideal_delay",
]


class Alternative(Value):
    """A schedule that was considered for an entry, and the verdict on it.

    `seconds` is the mean time over the profiled delays, from the late rank's arrival on, for the entry's reference
    size. `gain` is the time that the schedule saves, as a share of the time of the fastest schedule that uses no delay;
    it is negative if the schedule is slower. `executor` is as in `Entry`.
    Verdicts:

      chosen           the entry's schedule
      slower           predicted to take longer than the chosen one
      slower_here      a run tried the schedule; by this trial it takes at least as long as the chosen one
      kept_here        predicted to be faster than the chosen one, but a run has tried and kept the chosen one
      below_threshold  faster than the chosen one by less than `assumptions.min_gain` or the timed schedules' error
      not_timed        predicted to be faster, but only above the timed sizes, whose times do not yet grow with bytes
      window_taken     worthwhile alone, but other buckets of the step use the delay, or the call runs during backward
      calls_only       worthwhile alone, but a bucket of the step has this size, and steps are planned without chains
      too_many_ports   needs more peers at once than `assumptions.ports`
      ideal_delay      not a real choice: the time if the delay always hid the other ranks' work before the arrival
    """

    schedule: Spec
    seconds: Seconds
    gain: Number
    verdict: Verdict
    executor: ExecutorName | None = None


class Predicted(Value):
    """Predicted seconds of a call of `reference_bytes` bytes, from the late rank's arrival on: means over the delays.

    Every allreduce takes at least `lower_bound` if a rank has one port that exchanges with `Assumptions.ports` peers at
    once. `error` is the error that timed calls and models may have, as a share of the default schedule's time. `error`
    is 0 if nothing was timed, or if the entry has the default schedule.
    """

    reference_bytes: Count
    seconds: Seconds
    ring: Seconds
    halving_doubling: Seconds
    direct: Seconds
    broadcast: Seconds
    lower_bound: Seconds
    error: Seconds = 0.0


class Candidate(Value):
    """A schedule and the time that its calls took."""

    schedule: Spec
    seconds: Seconds


class MeasuredTimes(Value):
    """Times of calls of `bytes` bytes, from the late rank's arrival on, measured by `jaxcomm plan --try`.

    `seconds` is the time with the entry's schedule, and `default` is the time without a plan. `candidates` has the
    schedules that ran in turns with the default one, and their times. If no candidate was clearly faster, the entry has
    the default schedule.
    """

    bytes: Count
    seconds: Seconds
    default: Seconds
    candidates: Annotated[tuple[Candidate, ...], Field(fail_fast=True, max_length=8)]


ANY_RANK: Final = "any"  # the role of whichever rank arrives last at a call


class ScheduleSelector(Value):
    """Two schedules. Each call runs one of them, depending on the lateness of `rank`.

    Call i runs `early` if `rank` arrived at call i - 2 less than `lateness_s` seconds after all other ranks, otherwise
    `late`. The first two calls run `late`. If `rank` is "any", a call runs `late` for the rank that is still missing
    `lateness_s` seconds after all other ranks arrived. If no rank is missing then, the call runs `early`. `seconds` is
    the predicted mean time of a call of the entry's reference size, from the late rank's arrival on.
    """

    rank: RoleName
    lateness_s: Annotated[float, Field(gt=0, le=1e30, strict=True, allow_inf_nan=False)]
    early: Spec
    late: Spec
    seconds: Seconds

    @property
    def by_turns(self) -> bool:
        """Whether any rank may be the late rank."""
        return self.rank == ANY_RANK


class Entry(Value):
    """The schedule of calls of `min_bytes` to `max_bytes` bytes, both included. A `max_bytes` of null means no limit.

    Calls that the C++ core runs on CPUs follow `selector`, if it is not null, instead of `schedule`. If `executor` is
    "xla", XLA's own collective-permutes run the schedule on any platform. If `executor` is null, the platform's own
    executor runs the schedule; on CPUs this is the C++ core.
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
        """All schedules that the entry's calls may run, by their place in the entry."""
        found: dict[str, Spec] = {"schedule": self.schedule}
        if self.selector:
            found |= {"selector.early": self.selector.early, "selector.late": self.selector.late}
        return found


class Matches(Value):
    """The calls that a plan is for. `dtypes` has JAX names such as "float32"; null matches all element types."""

    ranks: Ranks
    dtypes: Annotated[tuple[Token, ...], Field(fail_fast=True, min_length=1, max_length=32)] | None = None
    topology: None = None  # part of the file format; always null, because a topology could not be checked


class Rotation(Value):
    """The rotational template of this plan's straggler schedules (see `jaxcomm.schedules.Template`)."""

    ranks: Ranks
    colours: Annotated[Offsets, Field(max_length=32)]
    send_peer: Offsets
    send_age: Offsets
    receive_peer: Offsets
    receive_age: Offsets
