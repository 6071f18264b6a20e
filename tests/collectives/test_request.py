"""The request of a collective, and the custom call that it becomes."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm.collectives import custom_call
from jaxcomm.collectives.request import AllowedDrop, Device, Request, extent

GROUPS = ((Device(0, 2), Device(1, 0), Device(0, 1)), (Device(1, 3),))
REQUEST = Request("psum", "all_reduce", "sum", "data", "", GROUPS)


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        Request("average", "all_reduce", "sum", "a,b", "f00", GROUPS, True),
        Request("psum", "all_reduce", "sum", "data", "", GROUPS, drop=AllowedDrop((0.1, 0.0), 64)),
    ],
)
def test_it_is_read_as_it_was_written(request_: Request) -> None:
    read = Request.from_json(request_.to_json())
    assert read == request_ and hash(read) == hash(request_)
    assert read.groups[0][1].process == 1


def test_it_tells_its_call_and_its_sizes() -> None:
    assert REQUEST.call == "psum over 'data'"
    assert REQUEST.sizes == [3, 1]


def test_operands_of_several_types_have_none() -> None:
    wide, narrow = np.dtype("float32"), np.dtype("float16")
    assert extent([((2, 3), wide), ((), wide)]) == (28, "float32")
    assert extent([((2, 3), wide), ((4,), narrow)]) == (32, None)


def test_the_custom_call_names_devices_as_its_core_does() -> None:
    operands = [((8,), np.dtype("float32"))]
    config = custom_call.attributes(REQUEST, operands)
    assert config["groups"].tolist() == [2, 0, 1, 3] and config["sizes"].tolist() == [3, 1]
    assert config["programs"] == "all_reduce/3,,"
    keys = custom_call.attributes(REQUEST, operands, lambda device: 10 * device.process + device.number)
    assert keys["groups"].tolist() == [2, 10, 1, 13]
