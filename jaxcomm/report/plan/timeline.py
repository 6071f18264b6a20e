"""A schedule as a picture: one row per rank, one column per round, one box per rank that receives in a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from jaxcomm.report import palette
from jaxcomm.report.drawing import document, text
from jaxcomm.schedules import Op, Schedule, Transfer

_KINDS = {
    "reduce": (palette.BEFORE, "receives a part, adds it"),
    "exchange": (palette.AFTER, "swaps parts with a peer, both add"),
    "copy": (palette.COPY, "receives a finished chunk"),
}
_LABEL_ALL = 16  # maximum number of ranks for which every row and round is labelled, and a box names its sender
_FEW_ROUNDS, _MANY_ROUNDS = 30, 72  # maximum number of rounds drawn per phase, for few and for many ranks


class _Column(NamedTuple):
    """A drawn round: its phase, its index in the phase, its label and the left edge of its boxes."""

    phase: Schedule
    round: int
    label: int
    x: float


class _Layout(NamedTuple):
    """Positions in pixels. `unit` is the size of an ordinary letter, `followed` is the chunk that is outlined."""

    columns: list[_Column]
    gaps: list[float]
    arrival: float | None
    box: tuple[float, float]
    left: float
    right: float
    top: float
    bottom: float
    unit: float
    followed: int


def svg(schedule: Schedule) -> str:
    """Draws a schedule round by round. Rounds before the late rank's arrival are left of the arrival line.

    Args:
      schedule: any schedule. A phase of more than 30 rounds (72 with more than 16 ranks) is drawn without its middle,
        and the picture says so.

    Returns:
      An SVG document with one `<rect class="box reduce|exchange|copy">` per drawn round and rank that receives in it.
    """
    layout = _lay_out(schedule)
    unit = layout.unit
    title, note = _title(schedule), _note(schedule, layout)
    layout = layout._replace(right=max(layout.right, layout.left + max(1.05 * len(title), 0.58 * len(note)) * unit))
    legend, end = _legend(layout)
    width, height = layout.right + 1.5 * unit, end + 1.5 * unit
    parts = [
        '<defs><pattern id="absent" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="8" height="8" fill="{palette.ABSENT[1]}"/>'
        f'<rect width="2" height="8" fill="{palette.ABSENT[2]}"/></pattern></defs>',
        text(layout.left, 1.8 * unit, title, 1.5 * unit, 'font-weight="bold"'),
        text(layout.left, 3.5 * unit, note, unit),
        *_rows(schedule, layout),
        *_boxes(schedule, layout),
        *_marks(schedule, layout),
        *_round_labels(schedule, layout),
        *legend,
    ]
    return document(width, height, title, parts)


def _lay_out(schedule: Schedule) -> _Layout:
    box = (40.0, 32.0) if schedule.ranks <= _LABEL_ALL else (24.0, 16.0)
    before = schedule.precondition
    phases = [(before, -before.num_rounds), (schedule, 1)] if before else [(schedule, 1)]
    limit = _limit(schedule)
    drawn = sum(min(phase.num_rounds, limit) for phase, _ in phases)
    unit = max(12.0, drawn * box[0] / 110)
    left = 7.5 * unit
    columns: list[_Column] = []
    gaps: list[float] = []
    x, arrival = left, None
    for phase, first_label in phases:
        if phase is schedule and before:
            arrival = x + 0.8 * unit
            x += 1.6 * unit
        hidden = phase.num_rounds - limit
        for number in range(phase.num_rounds):
            if hidden > 0 and limit // 2 <= number < limit // 2 + hidden:
                if number == limit // 2:
                    gaps.append(x + unit)
                    x += 2 * unit
                continue
            columns.append(_Column(phase, number, first_label + number, x))
            x += box[0]
    top = (7.5 if before else 5.0) * unit
    bottom = top + schedule.ranks * box[1]
    followed = min(schedule.num_chunks // 2, limit // 4)  # early enough that its transfers are drawn
    return _Layout(columns, gaps, arrival, box, left, x, top, bottom, unit, followed)


def _limit(schedule: Schedule) -> int:
    return _FEW_ROUNDS if schedule.ranks <= _LABEL_ALL else _MANY_ROUNDS


def _title(schedule: Schedule) -> str:
    rounds = f"{schedule.num_rounds} round{'s' * (schedule.num_rounds != 1)}"
    late = "" if schedule.late is None else f" after rank {schedule.late} arrives"
    return f"{schedule.kind} allreduce, {schedule.ranks} ranks, {schedule.num_chunks} chunks: {rounds}{late}"


def _note(schedule: Schedule, layout: _Layout) -> str:
    note = "A box: the number of the chunk that this rank receives (×m: m chunks)"
    note += ", and ← its sender." if schedule.ranks <= _LABEL_ALL else "."
    if layout.gaps:
        note += f" Of a phase of more than {_limit(schedule)} rounds the middle is left out (…)."
    return note


def _rows(schedule: Schedule, layout: _Layout) -> Iterator[str]:
    unit, (_, height) = layout.unit, layout.box
    end = layout.columns[-1].x + layout.box[0]
    step = 1 if schedule.ranks <= _LABEL_ALL else 4
    for rank in range(schedule.ranks):
        y, late = layout.top + rank * height, rank == schedule.late
        shade = palette.ABSENT[0] if late else ("#f6f6f6" if rank % 2 else "#ffffff")
        yield f'<rect x="{layout.left:g}" y="{y:g}" width="{end - layout.left:g}" height="{height:g}" fill="{shade}"/>'
        if late or (rank % step == 0 and (schedule.late is None or abs(rank - schedule.late) >= step / 2)):
            look = f'text-anchor="end" font-weight="bold" fill="{palette.LATE}"' if late else 'text-anchor="end"'
            name = f"{rank} late" if late else str(rank)
            yield text(layout.left - 0.5 * unit, y + height / 2 + 0.36 * unit, name, unit, look)
    middle = layout.top + schedule.ranks * height / 2
    rotated = f'text-anchor="middle" transform="rotate(-90 {1.6 * unit:g} {middle:g})"'
    yield text(1.6 * unit, middle, "rank", 1.1 * unit, rotated)
    if layout.arrival is not None and schedule.late is not None:
        y = layout.top + schedule.late * height
        yield (
            f'<rect class="absent" x="{layout.left:g}" y="{y + 1:g}" width="{layout.arrival - layout.left:g}" '
            f'height="{height - 2:g}" fill="url(#absent)"/>'
        )


def _boxes(schedule: Schedule, layout: _Layout) -> Iterator[str]:
    width, height = layout.box
    for phase in {id(column.phase): column.phase for column in layout.columns}.values():
        x_of = {column.round: column.x for column in layout.columns if column.phase is phase}
        received: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        reduces: set[tuple[int, int, int, int]] = set()
        for transfer in phase.transfers():
            if transfer.round in x_of:
                received[transfer.round, transfer.dst].append(transfer)
                if transfer.op == Op.REDUCE:
                    reduces.add((transfer.round, transfer.src, transfer.dst, transfer.chunk))
        for (number, rank), group in received.items():
            first = group[0]
            kind = "copy" if first.op == Op.COPY else "reduce"
            if (number, rank, first.src, first.chunk) in reduces and kind == "reduce":
                kind = "exchange"
            chunks = sorted({transfer.chunk for transfer in group})
            line = (palette.INK, 2.4) if layout.followed in chunks else (palette.GREY, 0.6)
            x, y = x_of[number], layout.top + rank * height
            yield (
                f'<rect class="box {kind}" x="{x + 1.5:g}" y="{y + 1.5:g}" width="{width - 3:g}" '
                f'height="{height - 3:g}" rx="2" fill="{_KINDS[kind][0]}" stroke="{line[0]}" stroke-width="{line[1]}"/>'
            )
            yield from _box_label(schedule, x + width / 2, y, chunks, sorted({transfer.src for transfer in group}))


def _box_label(schedule: Schedule, x: float, y: float, chunks: list[int], sources: list[int]) -> Iterator[str]:
    name = " ".join(map(str, chunks))
    if schedule.ranks > _LABEL_ALL:
        name = name if len(chunks) == 1 and len(name) <= 4 else f"×{len(chunks)}"
        yield text(x, y + 11.5, name, 9, 'text-anchor="middle"')
        return
    name = name if len(name) <= 5 else f"×{len(chunks)}"
    yield text(x, y + 15, name, 12, 'text-anchor="middle" font-weight="bold"')
    source, size = (f"← {sources[0]}", 9) if len(sources) == 1 else (f"←{len(sources)} ranks", 7)
    yield text(x, y + 26, source, size, 'text-anchor="middle"')


def _marks(schedule: Schedule, layout: _Layout) -> Iterator[str]:
    unit = layout.unit
    for x in layout.gaps:
        yield text(x, (layout.top + layout.bottom) / 2, "…", 2 * unit, 'text-anchor="middle" font-weight="bold"')
    if layout.arrival is None or schedule.late is None:
        return
    x, above = layout.arrival, layout.top - 0.6 * unit
    yield (
        f'<line class="arrival" x1="{x:g}" x2="{x:g}" y1="{above - 1.6 * unit:g}" y2="{layout.bottom:g}" '
        f'stroke="{palette.LATE}" stroke-width="{unit / 5:g}" stroke-dasharray="{unit / 2:g} {unit / 3:g}"/>'
    )
    bold = f'font-weight="bold" fill="{palette.LATE}"'
    yield text(x + 0.6 * unit, above - 0.6 * unit, f"rank {schedule.late} arrives →", unit, bold)
    end = 'text-anchor="end" fill="#555555"'
    yield text(x - 0.6 * unit, above - 0.6 * unit, "the others, meanwhile", unit, end)


def _round_labels(schedule: Schedule, layout: _Layout) -> Iterator[str]:
    unit = layout.unit
    step = 1 if schedule.ranks <= _LABEL_ALL else 5
    size = min(unit, 12.0) if step == 1 else unit
    for column in layout.columns:
        if abs(column.label) % step == 0 or column.label == 1:
            x = column.x + layout.box[0] / 2
            yield text(x, layout.bottom + 1.3 * unit, str(column.label), size, 'text-anchor="middle"')
    middle = (layout.left + layout.columns[-1].x + layout.box[0]) / 2
    name = "round" if layout.arrival is None else "round, counted from the late rank's arrival"
    yield text(middle, layout.bottom + 3.1 * unit, name, 1.1 * unit, 'text-anchor="middle"')


def _legend(layout: _Layout) -> tuple[list[str], float]:
    """The shapes of the legend, and the height at which the legend ends."""
    unit = layout.unit
    thin, thick = f'stroke="{palette.GREY}" stroke-width="0.6"', f'stroke="{palette.INK}" stroke-width="2.4"'
    keys = [(f'fill="{fill}" {thin}', f"{kind}: {meaning}") for kind, (fill, meaning) in _KINDS.items()]
    keys.append((f'fill="white" {thick}', f"dark outline: the way of chunk {layout.followed}"))
    if layout.arrival is not None:
        keys.append(('fill="url(#absent)"', "the late rank is away"))
    parts, x, y = [], layout.left, layout.bottom + 5 * unit
    for look, words in keys:
        width = (3.4 + 0.58 * len(words)) * unit
        if x + width > layout.right + 3 * unit:
            x, y = layout.left, y + 1.8 * unit
        box = f'x="{x:g}" y="{y - unit:g}" width="{1.6 * unit:g}" height="{1.2 * unit:g}"'
        parts += [f'<rect class="key" {box} {look}/>', text(x + 2.1 * unit, y, words, unit)]
        x += width
    return parts, y
