"""The request of a collective, and the custom call that it becomes."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm.collectives import custom_call
from jaxcomm.collectives.request import AllowedDrop, Device, Request, extent
from jaxcomm.ffi.site_record import SiteGroup, SiteRecord, devices_of

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


def test_the_custom_call_describes_its_site() -> None:
    (name, site), *more = custom_call.attributes(REQUEST, [((8,), np.dtype("float32"))]).items()
    groups = [SiteGroup([(0, 2), (1, 0), (0, 1)], ["all_reduce/3"]), SiteGroup([(1, 3)], [])]
    assert name == "site" and not more
    assert site == SiteRecord("psum", "data", "all_reduce", "sum", "direct", False, groups).encode()
    assert devices_of(site.encode()) == ("all_reduce", ((2, 0, 1), (3,)))
