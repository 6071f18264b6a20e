"""Strips the prefix that a launcher, a log collector or a mail program put before each line.

    [pod/test-launcher-x/mpi-launcher] # nThread 1 nGpus 8      kubectl logs --prefix
    [1,0]<stdout>:# nThread 1 nGpus 8                           mpirun --tag-output
    2026-01-01T12:00:00.123Z # nThread 1 nGpus 8                kubectl logs --timestamps, a CI's log

A prefix has one of the shapes in `_SHAPES`. For most shapes, at least nine of ten lines must begin with the prefix. Its
rank numbers, host names and times may differ from line to line. If a line has several prefixes, all of them are
stripped. Lines without a prefix stay as they are. No line is added or removed, so that error texts name the file's own
line numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, NamedTuple

_LOOKED_AT: Final = 2**20  # bytes at the start of the data that are searched for a prefix
_LINES: Final = 2000
_NESTED: Final = 8  # maximum number of prefixes of one line

_DATE = rb"\d{4}[-/]\d\d[-/]\d\d[T ]|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]?\d "
_TIME = rb"(?:%b)?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d| \d{4})?" % _DATE
_LEVEL = rb"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)"


class _Shape(NamedTuple):
    """A prefix as a regular expression, and the least share of lines that must have it.

    With `same`, the prefix is equal on all lines that have it.
    """

    prefix: bytes
    same: bool = False
    share: float = 0.9  # below 1: a shell's prompt or a launcher's message may stand between the lines


_COLOUR = rb"(?:\x1b\[[\d;]{0,16}m)?"
_END = _COLOUR + rb"(?: |\r?$)"  # a prefix ends with a blank, or at the line's end if a tool stripped the blank
_SHAPES: Final = (
    _Shape(rb"\[?%b\]?(?::| -)?(?:%b|\t|(?=[\[<]))" % (_TIME, _END)),  # journald, ts, docker logs -t, logging
    _Shape(rb"[IWEF]\d{4,8} \d\d:\d\d:\d\d\.\d{6} {1,8}\d{1,10} [\w./-]{1,100}:\d{1,6}\]" + _END),  # glog, absl
    _Shape(rb"(?:\d\d[OE]\+?|std(?:out|err) [FP])" + _END),  # GitLab, containerd (after a prefix with the time)
    _Shape(
        rb"(?:\[[^\[\]\n]{1,200}\](?:<std\w{1,8}>)?|<std\w{1,8}>):?(?: \|)?(?:%b)?" % _END
    ),  # mpirun, torchrun, kubectl
    _Shape(rb"\([^()\n]{1,200}\):?" + _END),  # Ray, SkyPilot
    _Shape(rb"(?:[\w.]{1,100} - )?%b(?::[\w.]{1,100}:|(?: -|:)?%b)" % (_LEVEL, _END)),  # Python's logging
    _Shape(rb"[^\s|]{1,200} {0,100}\|" + _END),  # docker compose, foreman
    _Shape(rb" {0,8}(?:[\w.-]{1,100} )?[\w.@/-]{1,200}(?:\[\d{1,10}\])?:" + _END),  # srun -l, pdsh, clush, syslog
    _Shape(rb"[\w-]{1,100}/\d{1,6}" + _END),  # torchx
    _Shape(rb"[a-z0-9.-]{1,200}-[a-z0-9]{1,10} [a-z][a-z0-9-]{0,62}" + _END, same=True),  # stern
    _Shape(rb"[^\t\n]{1,200}\t", same=True),  # parallel --tag, gh run view --log
    _Shape(rb"> ?"),  # mail
    _Shape(rb"[ \t]{1,200}(?=\S)", share=1.0),  # indented
)


def stripped(data: bytes) -> bytes:
    """The lines without their common prefixes; `data` itself if there is no common prefix.

    Takes time proportional to the bytes, and memory for two copies of the bytes.
    """
    for _ in range(_NESTED):
        if (prefix := _common(data[:_LOOKED_AT])) is None:
            return data
        data = prefix.sub(b"\n", b"\n" + data)[1:]
    return data


def _common(data: bytes) -> re.Pattern[bytes] | None:
    """A pattern for a newline and then the first shape with which enough lines begin; None if no shape fits."""
    if b"\0" in data:
        return None
    lines = [b"\n" + line for line in data.split(b"\n") if line.strip()][:_LINES]
    for shape in _SHAPES:
        pattern = re.compile(rb"(?m)\n%b(?:%b)%b" % (_COLOUR, shape.prefix, _COLOUR))
        found = Counter(match[0][1:].rstrip() for line in lines if (match := pattern.match(line)))
        if shape.same and found:
            [(tag, count)] = found.most_common(1)
            pattern = re.compile(rb"(?m)\n%b(?:[ \t]|\r?$)" % re.escape(tag))
        else:
            count = found.total()
        if count >= shape.share * len(lines) > 0:
            return pattern
    return None
