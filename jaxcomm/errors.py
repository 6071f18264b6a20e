"""The errors a user of jaxcomm may meet. Each message says which value, where, and what to do."""

from __future__ import annotations


class JaxcommError(Exception):
    """Base class of every error that jaxcomm raises on purpose."""


class PlanError(JaxcommError, ValueError):
    """A plan, schedule or program that is malformed or that does not compute the collective."""


class ProfileError(JaxcommError, ValueError):
    """A profile or a measurement file that cannot be used."""
