"""Collective schedules as pure algorithms: who sends which chunk to whom, in which round.

Nothing here knows JAX, files, links or programs; only numpy is imported, and OR-Tools at the moment when a straggler
schedule needs a template that has no closed form. Anybody may import this package; it imports nothing else of jaxcomm
but the errors.
"""

from jaxcomm.schedules.direct import direct
from jaxcomm.schedules.halving_doubling import halving_doubling
from jaxcomm.schedules.ring import ring
from jaxcomm.schedules.schedule import Op, Schedule, Transfer
from jaxcomm.schedules.template import Template

__all__ = ["Op", "Schedule", "Template", "Transfer", "direct", "halving_doubling", "ring"]
