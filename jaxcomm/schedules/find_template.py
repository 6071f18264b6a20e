"""The straggler template for n ranks. It has a closed form for n = 2^L and n = 2^L − 1; otherwise OR-Tools finds it."""

from __future__ import annotations

from functools import lru_cache

from jaxcomm.schedules.template import Template, TemplateStep


@lru_cache
def template(ranks: int) -> Template:
    """The template with which a straggler schedule among n ranks takes the fewest rounds.

    For n = 2^L and n = 2^L − 1 the template has a closed form. For other n OR-Tools finds the template. A template is
    pairwise if each rank sends to the rank from which it receives in the same round. The template is pairwise for all
    n = 2^L, and for other even n if OR-Tools finds a pairwise template. The same n always gives the same template.

    Args:
      ranks: number of ranks n, at least 2, the late one included.

    Raises:
      PlanError: OR-Tools is needed and not installed, or no template was found.

    Example:
      >>> jaxcomm.schedules.template(4).ranks
      4
    """
    if ranks & (ranks - 1) == 0 or ranks & (ranks + 1) == 0:
        return _closed_form(ranks)
    from jaxcomm.schedules.template_solver import search  # only this search needs OR-Tools

    return search(ranks)


def _closed_form(ranks: int) -> Template:
    """Builds the template by a walk down the circle of offsets. `Template` defines offsets and ages.

    A rank's offset decreases by 1 in every round, so each rank takes this walk. The last age is L = ⌈log2 n⌉. If a rank
    receives a chunk at age a < L, it sends the chunk at the ages a + 1 to L. Then it receives the next chunk that it
    will send. So the walk's step has the length L − a. At an offset where no step begins, a rank receives a chunk at
    age L.
    """
    others, last = ranks - 1, (ranks - 1).bit_length()
    pairwise = ranks & (ranks - 1) == 0
    starts = [0] + [age for age in range(1, last) for _ in range(1 << (age - 1))]
    if not pairwise:
        starts.pop()  # instead of this step, a rank returns the finished chunk to the late rank
    holders: dict[int, list[int]] = {age: [] for age in range(1, last + 1)}
    receivers: dict[int, list[int]] = {age: [] for age in range(last + 1)}
    idle = set(range(others))
    offset = 0
    for age in starts:
        receivers[age].append(offset)
        idle.discard(offset)
        for later in range(age + 1, last + 1):
            offset = (offset - 1) % others
            holders[later].append(offset)
    receivers[last] = sorted(idle)

    steps = [TemplateStep(others, 0, 0)]
    if pairwise:
        steps.append(TemplateStep(0, others, 0))
        for age in range(1, last):
            for u, v in zip(holders[age], receivers[age], strict=True):
                steps += TemplateStep(u, v, age), TemplateStep(v, u, last)
    else:
        steps.append(TemplateStep(holders[last - 1].pop(), others, last - 1))
        for age in range(1, last + 1):
            steps += (TemplateStep(u, v, age) for u, v in zip(holders[age], receivers[age], strict=True))
    return Template.of_steps(ranks, [0] * last, steps)
