"""Uplinks and NICs of known racks, from synthetic times."""

from __future__ import annotations

import pytest

from jaxcomm.measure.rack_links import rack_links
from tests.measure.test_placement import ALPHA, BETA, made_up

RACKS = ((0, 1, 2), (3, 4, 5))
HOME = [0, 0, 0, 1, 1, 1]
ONE_EACH = [*range(6)]


@pytest.mark.parametrize(
    ("changes", "uplinks", "nics"),
    [
        ({}, (1, 1), [1] * 6),
        ({"uplink": 4.0}, (4, 4), [1] * 6),
        ({"nics": {4: 3.0}}, (1, 1), [1, 1, 1, 1, 3, 1]),
        ({"uplink": 4.0, "nics": {0: 3.0}}, (4, 4), [3, 1, 1, 1, 1, 1]),
        ({"uplink": 4.0, "nics": {0: 9.0}}, (4, 4), [9, 1, 1, 1, 1, 1]),
    ],
)
def test_uplinks_and_nics_of_racks_are_found(changes, uplinks, nics) -> None:
    found = rack_links(made_up(ONE_EACH, HOME, **changes), RACKS)
    assert found is not None
    assert found.racks == RACKS
    assert found.uplinks == pytest.approx(uplinks, rel=0.3)
    assert found.nics == pytest.approx(nics, rel=0.3)
    assert found.alpha_s == pytest.approx(ALPHA, rel=0.5)
    assert found.beta_s_per_byte == pytest.approx(BETA, rel=0.3)


def test_an_uplink_counts_as_one_transfer_alone_has_it() -> None:
    found = rack_links(
        made_up(ONE_EACH, HOME, uplink=1.0, noise=False), RACKS
    )  # three transfers at once take three times as long
    assert found is not None
    assert found.uplinks == (1, 1)


def test_ranks_of_one_host_do_not_hide_its_nic() -> None:
    host = [0, 0, 1, 1, 2, 2, 3, 3]
    racks = ((0, 1, 2, 3), (4, 5, 6, 7))
    found = rack_links(made_up(host, [0, 0, 1, 1], uplink=5.0, within=0.01, noise=False), racks)
    assert found is not None
    assert found.uplinks == pytest.approx((5, 5), rel=0.05)
    assert found.nics == (1,) * 8
    assert found.beta_s_per_byte == pytest.approx(BETA, rel=0.05)


def test_a_rack_may_be_one_host_or_one_rank() -> None:
    found = rack_links(made_up([0, 0, 1, 1], [0, 1], within=0.25, noise=False), ((0, 1), (2, 3)))
    assert found is not None
    assert found.uplinks == pytest.approx((4, 4), rel=0.05)
    single = rack_links(made_up([0, 1, 2], [0, 1, 2], noise=False), ((0,), (1,), (2,)))
    assert single is not None
    assert (single.uplinks, single.nics) == ((1, 1, 1), (1, 1, 1))


def test_racks_that_the_times_contradict_are_those_of_the_times() -> None:
    found = rack_links(made_up(ONE_EACH, [0, 1, 0, 1, 0, 1], uplink=4.0), RACKS)
    assert found is not None
    assert found.racks == ((0, 2, 4), (1, 3, 5))
    assert found.uplinks == pytest.approx((4, 4), rel=0.3)


def test_of_one_host_no_network_is_known() -> None:
    assert rack_links(made_up([0] * 4, [0]), ((0, 1), (2, 3))) is None
