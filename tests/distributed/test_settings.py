"""What the environment says of connections, and the words for what it cannot say."""

from __future__ import annotations

import pytest

from jaxcomm.distributed.settings import Settings, from_environment
from jaxcomm.errors import JaxcommError


def test_nothing_need_be_set() -> None:
    assert from_environment({}) == Settings("auto", "", "", "", 300.0)
    assert from_environment({"JAXCOMM_TRANSPORT": "", "JAXCOMM_CONNECT_TIMEOUT_S": ""}) == Settings()


def test_all_is_read() -> None:
    environment = {
        "JAXCOMM_TRANSPORT": "tcp",
        "JAXCOMM_INTERFACE": "eth1",
        "JAXCOMM_HOST": "left",
        "JAXCOMM_SECRET_FILE": "/secret",
        "JAXCOMM_CONNECT_TIMEOUT_S": "2.5",
    }
    assert from_environment(environment) == Settings("tcp", "eth1", "left", "/secret", 2.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TRANSPORT", "udp"), *(("CONNECT_TIMEOUT_S", value) for value in ("0", "-1", "nan", "inf", "soon", "1e9"))],
)
def test_what_cannot_be_meant_is_named(name: str, value: str) -> None:
    with pytest.raises(JaxcommError, match=rf"^JAXCOMM_{name} is '{value}'.*\n  Cure: "):
        from_environment({f"JAXCOMM_{name}": value})
