"""Collective schedules as pure algorithms: the sender, the receiver and the chunk of every transfer, by round.

Nothing here knows JAX, files, links or programs; only numpy is imported, and OR-Tools at the moment when a straggler
schedule needs a template that has no closed form. Anybody may import this package; it imports nothing else of jaxcomm
but the errors and the C++ core, in which list scheduling and the search for trees run.
"""

from jaxcomm.schedules.broadcast import broadcast
from jaxcomm.schedules.chain import chain
from jaxcomm.schedules.direct import direct
from jaxcomm.schedules.direct_join import direct_join
from jaxcomm.schedules.find_template import template
from jaxcomm.schedules.halves import half, hierarchical_half, hierarchical_halves
from jaxcomm.schedules.halving_doubling import halving_doubling, orders_by_host
from jaxcomm.schedules.hierarchical import hierarchical
from jaxcomm.schedules.hybrid import hybrid
from jaxcomm.schedules.late_join import late_join
from jaxcomm.schedules.one_late_rank import straggler
from jaxcomm.schedules.ring import ring
from jaxcomm.schedules.schedule import Op, Schedule, Transfer
from jaxcomm.schedules.several_late_ranks import stragglers
from jaxcomm.schedules.template import Template
from jaxcomm.schedules.transfers import listed

__all__ = [
    "Op",
    "Schedule",
    "Template",
    "Transfer",
    "broadcast",
    "chain",
    "direct",
    "direct_join",
    "half",
    "halving_doubling",
    "hierarchical",
    "hierarchical_half",
    "hierarchical_halves",
    "hybrid",
    "late_join",
    "listed",
    "orders_by_host",
    "ring",
    "straggler",
    "stragglers",
    "template",
]
