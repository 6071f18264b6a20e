"""Published bounds on the loss of gradients that trainings bear without taking more steps, by model."""

from __future__ import annotations

from typing import Final, NamedTuple


class Published(NamedTuple):
    """Shares of a model's gradients that may be lost: any of them at random; front layers and small ones first."""

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


def published(model: str) -> Published | None:
    """What is published for a model of this name, whatever its case and spaces; None: nothing."""
    return next((row for row in PUBLISHED if _plain(row.model) == _plain(model)), None)


def _plain(model: str) -> str:
    return "".join(model.split()).casefold()
