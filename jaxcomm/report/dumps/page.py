"""The dumps of a job's processes as one HTML page."""

from __future__ import annotations

from jaxcomm.report.dumps.incident import Incident
from jaxcomm.report.dumps.words import summary
from jaxcomm.report.html_page import document, preformatted


def html(found: Incident) -> str:
    """The page, which needs no other file."""
    return document("A failed call of jaxcomm", preformatted(summary(found)))
