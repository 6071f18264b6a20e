"""The drops of gradients that a training run tolerates, in a profile: by layer, and in the queues of a switch."""

from __future__ import annotations

from typing import Annotated, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Bytes, Positive, Share, Text, Value
from jaxcomm.profile.drop_study import Trials


class Impact(Value):
    """A measured point: if `share` of a layer's gradients is lost, a training run takes `rounds` more rounds."""

    share: Share
    rounds: Annotated[float, Field(ge=0, le=1e12, strict=True, allow_inf_nan=False)]

    @pydantic.model_validator(mode="after")
    def _share_can_be_measured(self) -> Self:
        if 0 < self.share < 1e-9:
            raise ValueError(f"share is {self.share}; the least that can be measured is 1e-9")
        return self


class Layer(Value):
    """A layer of the model.

    `small` has the measured costs of losing shares of the layer's small gradients, and `large` those of its large
    gradients.
    """

    name: Annotated[Text, Field(min_length=1)]
    bytes: Bytes
    small: list[Impact] = []
    large: list[Impact] = []

    @pydantic.model_validator(mode="after")
    def _shares_ascend(self) -> Self:
        for name, points in (("small", self.small), ("large", self.large)):
            for i, point in enumerate(points):
                if point.share <= (points[i - 1].share if i else 0):
                    raise ValueError(
                        f'the shares of layer "{self.name}", {name}[{i}], must ascend from above 0: it is {point.share}'
                    )
        return self


class Switch(Value):
    """The switch between the ranks: its priority queues, its buffer in packets, and its load λ/μ."""

    queues: Annotated[int, Field(ge=1, le=64, strict=True)] = 8
    buffer_packets: Positive
    load: Annotated[float, Field(gt=0, le=100, strict=True, allow_inf_nan=False)]


class Tolerance(Value):
    """The drops of gradients that a training run tolerates.

    `layers` are in forward order. `model` names the architecture, by which a published bound is looked up. `bound` is
    the measured maximum share of a tensor that may be lost (null: not measured), and `trials` are the training runs
    that measured `bound`. `small_share` is the share of gradients that count as small.
    """

    layers: Annotated[list[Layer], Field(min_length=1)]
    model: Text = ""
    bound: Share | None = None
    trials: Trials | None = None
    small_share: Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False)] = 0.5
    switch: Switch | None = None

    @pydantic.model_validator(mode="after")
    def _layers_are_alike(self) -> Self:
        names: set[str] = set()
        measured = any(layer.small or layer.large for layer in self.layers)
        for i, layer in enumerate(self.layers):
            if layer.name in names:
                raise ValueError(f'tolerance.layers[{i}].name is "{layer.name}", which another has; names must differ')
            names.add(layer.name)
            if measured and not (layer.small and layer.large):
                missing = "large" if layer.small else "small"
                raise ValueError(
                    f'tolerance.layers[{i}], "{layer.name}", has no {missing}, but other tables exist; measure the '
                    "cost of drops for the small and large gradients of every layer, or of none"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _bound_is_that_of_the_trials(self) -> Self:
        if self.trials and self.bound != self.trials.bound:
            raise ValueError(
                f"tolerance.bound is {self.bound}, but by its trials it is {self.trials.bound}; to plan with another "
                "bound, use `jaxcomm plan --drop-bound`"
            )
        return self
