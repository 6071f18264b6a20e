"""Published shares of gradients that training runs can drop without taking more steps, by model."""

from __future__ import annotations

import difflib
from typing import Final, NamedTuple

from jaxcomm.errors import ProfileError
from jaxcomm.files import short


class Published(NamedTuple):
    """Shares of a model's gradients that may be lost. `selective` drops front layers and small gradients first."""

    model: str
    random: float
    selective: float


# Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", tables 1 and 5: LSTM and GRU on
# Wikitext-2, the others on ImageNet100.
PUBLISHED: Final = (
    Published("GoogleNet", 0.007, 0.13),
    Published("AlexNet", 0.008, 0.18),
    Published("EfficientNetB0", 0.008, 0.17),
    Published("VGG13", 0.009, 0.16),
    Published("LSTM", 0.008, 0.11),
    Published("VGG16", 0.008, 0.17),
    Published("VGG19", 0.009, 0.18),
    Published("ResNet18", 0.009, 0.18),
    Published("ResNet34", 0.01, 0.14),
    Published("GRU", 0.012, 0.12),
    Published("Wide ResNet101", 0.013, 0.16),
    Published("DenseNet169", 0.016, 0.16),
    Published("Wide ResNet50", 0.024, 0.17),
    Published("ResNet50", 0.024, 0.16),
    Published("ShuffleNetV2", 0.025, 0.16),
    Published("ResNet101", 0.033, 0.17),
)


def published(model: str) -> Published:
    """The published bounds of a model. Case and spaces of the model's name do not matter.

    Raises:
      ProfileError: no bounds of this model are published.
    """
    rows = {_plain(row.model): row for row in PUBLISHED}
    if (row := rows.get(_plain(model))) is not None:
        return row
    known = ", ".join(row.model for row in PUBLISHED)
    near = [rows[name].model for name in difflib.get_close_matches(_plain(model), rows)]
    raise ProfileError(
        f"no bound on the drops of {short(model)} is published; known models: {known}.\n"
        f"  Cure: {f'did you mean {near[0]}? Else ' if near else ''}name a model that is like yours, give a bound, or "
        "measure it with `jaxcomm profile drop-bound`."
    )


def _plain(model: str) -> str:
    return "".join(model.split()).casefold()
