"""Collective schedules as pure algorithms: the sender, the receiver and the chunk of every transfer, by round.

Nothing here depends on JAX, files, links or programs. The package imports numpy. It uses OR-Tools only for a straggler
schedule whose template has no closed form. From jaxcomm it imports only the errors, the loader of OR-Tools and the C++
core, which runs list scheduling and the search for trees. Any package may import this one.
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
from jaxcomm.schedules.ports import HostLinks
from jaxcomm.schedules.ring import ring
from jaxcomm.schedules.schedule import Op, Schedule, Transfer
from jaxcomm.schedules.several_late_ranks import stragglers
from jaxcomm.schedules.template import Template
from jaxcomm.schedules.transfers import listed

__all__ = [
    "HostLinks",
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
