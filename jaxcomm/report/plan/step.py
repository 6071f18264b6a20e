"""A planned training step in words and as a picture: each bucket's gradients, and the times of its transfers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxcomm.plan.schema import Plan
from jaxcomm.plan.step import Gradient, Span, Step
from jaxcomm.report import palette
from jaxcomm.report.drawing import document, escaped, text
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import spec_text

_COLOURS = {"before": palette.BEFORE, "after": palette.AFTER}
_ACCEPTED = {
    "drops": "the drop policy",
    "groups": "averages within groups",
    "drops_and_groups": "the drop policy and averages within groups",
}
_WIDTH, _LEFT, _TOP, _ROW, _LINE = 960.0, 110.0, 110.0, 44.0, 17.0
_MOST_NAMED = 40  # maximum number of buckets that a picture names


def step_headline(step: Step) -> str:
    """One sentence: the time of the step with and without the plan."""
    return (
        f"The {step.buckets} gradient bucket{'s' * (step.buckets != 1)} of a step, {bytes_text(step.bytes)} together: "
        f"{seconds_text(step.seconds)} from the late rank's last gradient to the last sum, "
        f"{seconds_text(step.plain_seconds)} without this plan."
    )


def step_lines(step: Step) -> Iterator[str]:
    """Yields lines: the step's time, also without merged buckets and with each relaxation, and its lower bound."""
    yield step_headline(step)
    if len(step.planned) < step.buckets:
        yield (
            f"That is with {len(step.planned)} bucket{'s' * (len(step.planned) != 1)}; as they are, "
            f"{step.buckets} buckets take {seconds_text(step.scheduled_seconds)} at best."
        )
    else:
        yield "Its buckets stay as they are: no others that were considered save enough."
    yield (
        "With one port per rank no boundaries, order or schedules take less than "
        f"{seconds_text(step.lower_bound_seconds)}, "
        f"{1 - step.lower_bound_seconds / step.seconds if step.seconds else 0:.0%} below; among those considered "
        f"{step.status.lower()}, gap {step.gap:.2%}."
    )
    yield from relaxed_lines(step)


def relaxed_lines(step: Step) -> Iterator[str]:
    """Yields one line for each relaxation, such as drops: the step's time if a training run accepted the relaxation."""
    for each in step.accepting:
        links = "" if each.exact_seconds == step.seconds else " over the profile's lossy or slow links"
        yield (
            f"If you accept {_ACCEPTED[each.relaxation]}: {seconds_text(each.seconds)} instead of "
            f"{seconds_text(each.exact_seconds)}{links}, {each.saving:z.1%} less. Never chosen for you."
        )


def step_table(step: Step) -> str:
    """One row per bucket: its gradients, its schedule, and the time spans in which it is transferred."""
    header = ["gradients", "bytes", "ready", "runs", "before arrival", "arrives", "after arrival"]
    rows = []
    for bucket, members in zip(step.planned, step.members(), strict=True):
        ready = members[-1].ready_s
        times = (_span_text(bucket.before), seconds_text(ready + step.delay_s), _span_text(bucket.after))
        spec = spec_text(bucket.schedule)
        rows.append([names_text(members), bytes_text(bucket.bytes), seconds_text(ready), spec, *times])
    return table(header, rows)


def names_text(members: tuple[Gradient, ...]) -> str:
    """The gradients of a bucket, such as `head … layer3 (4)`."""
    first, last = (name if len(name) <= 24 else f"{name[:23]}…" for name in (members[0].name, members[-1].name))
    return first if len(members) == 1 else f"{first} … {last} ({len(members)})"


def _span_text(span: Span | None) -> str | None:
    return f"{seconds_text(span.start_s)} – {seconds_text(span.end_s)}" if span else None


def gantt(plan: Plan, step: Step) -> str:
    """Draws the step: a bar per bucket and phase (before and after the late rank's arrival), and up to 40 bucket names.

    A black mark shows when a bucket is ready, an orange mark when the bucket is ready on the late rank, too.

    Returns:
      An SVG document with one `<rect class="bar before|after">` per bucket and phase.
    """
    last_ready = step.gradients[-1].ready_s
    ends = [bucket.after.end_s for bucket in step.planned]
    end = max(*ends, last_ready + step.delay_s) or 1.0
    scale = (_WIDTH - _LEFT - 30) / end
    bottom = _TOP + _ROW
    names = [*_bucket_names(step)]
    height = bottom + 82 + _LINE * len(names)
    who = f"rank {', '.join(map(str, sorted(plan.roles.values())))}"
    nobody = "no delay counted on, as α is assumed" if plan.assumptions.alpha_assumed else "no rank late"
    late = f"{who} late by {seconds_text(step.delay_s)}" if plan.roles else nobody
    title = (
        f"A step of {step.buckets} gradients in {len(step.planned)} buckets, {late}: "
        f"{seconds_text(max(ends) - last_ready - step.delay_s)} from its last gradient to the last sum"
    )
    parts = [
        text(20, 28, title, 14, 'font-weight="bold"'),
        text(20, 48, "Marks above: a bucket is ready (black), and on the late rank, too (orange).", 12),
    ]
    parts.append(text(_LEFT - 10, _TOP + _ROW / 2 + 4, "network", 12, 'text-anchor="end"'))
    parts.append(f'<line x1="{_LEFT:g}" x2="{_WIDTH - 30:g}" y1="{_TOP:g}" y2="{_TOP:g}" stroke="{palette.PALE}"/>')
    for number, (bucket, members) in enumerate(zip(step.planned, step.members(), strict=True), 1):
        ready = members[-1].ready_s
        for class_, colour, at in (("ready", palette.INK, ready), ("arrival", palette.LATE, ready + step.delay_s)):
            x = _LEFT + scale * at
            parts.append(
                f'<line class="{class_}" x1="{x:.6g}" x2="{x:.6g}" y1="{_TOP - 24:g}" y2="{_TOP - 4:g}" '
                f'stroke="{colour}" stroke-width="2"/>'
            )
        label = f"{number}: {names_text(members)}, {bytes_text(bucket.bytes)}, {spec_text(bucket.schedule)}"
        for class_, span in (("before", bucket.before), ("after", bucket.after)):
            if span:
                x, width = _LEFT + scale * span.start_s, scale * (span.end_s - span.start_s)
                parts.append(
                    f'<rect class="bar {class_}" x="{x:.6g}" y="{_TOP + 6:g}" width="{max(width, 0.5):.6g}" '
                    f'height="{_ROW - 12:g}" fill="{_COLOURS[class_]}" stroke="{palette.GREY}" stroke-width="0.6">'
                    f"<title>{escaped(label)}, {_span_text(span)}</title></rect>"
                )
                if width > 9 * len(str(number)):
                    parts.append(text(x + width / 2, _TOP + _ROW / 2 + 4, str(number), 12, 'text-anchor="middle"'))
    for at in ticks(end):
        x = _LEFT + scale * at
        parts.append(f'<line x1="{x:.6g}" x2="{x:.6g}" y1="{bottom:g}" y2="{bottom + 5:g}" stroke="{palette.GREY}"/>')
        parts.append(text(x, bottom + 18, seconds_text(at) if at else "0", 11, 'text-anchor="middle"'))
    x = _LEFT
    for class_, words in (("before", "while the late rank is away"), ("after", "once it has the bucket")):
        parts.append(f'<rect x="{x:g}" y="{bottom + 40:g}" width="18" height="14" fill="{_COLOURS[class_]}"/>')
        parts.append(text(x + 26, bottom + 52, words, 12))
        x += 240
    for line, name in enumerate(names, 1):
        parts.append(text(_LEFT, bottom + 60 + _LINE * line, name, 12))
    return document(_WIDTH, height, title, parts)


def ticks(end: float) -> list[float]:
    """At most seven numbers from 0 to `end`: multiples of one number, which is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(end / 6))
    width = next(width for width in (power, 2 * power, 5 * power, 10 * power) if end / width <= 6)
    return [width * number for number in range(int(end / width * (1 + 1e-9)) + 1)]


def _bucket_names(step: Step) -> Iterator[str]:
    members = step.members()
    for number, (bucket, gradients) in enumerate(zip(step.planned[:_MOST_NAMED], members, strict=False), 1):
        yield f"{number}: {names_text(gradients)}, {bytes_text(bucket.bytes)}, {spec_text(bucket.schedule)}"
    if len(members) > _MOST_NAMED:
        yield f"… and {len(members) - _MOST_NAMED} more, which `jaxcomm explain` lists"
