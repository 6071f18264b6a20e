"""The handshake refuses everything but itself: changed, replayed, reflected, of another job, process or rail."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from jaxcomm.distributed.connect import secret
from jaxcomm.distributed.connect.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    VERSION,
    WELCOME_BYTES,
    ConnectorSide,
    ListenerSide,
    NotExpected,
    Refused,
)

CHANGED_MESSAGES = int(os.environ.get("JAXCOMM_FUZZ_EXAMPLES", "100000"))
KEY = secret.key(b"a secret of this job", "job", 1)


def connector(key: bytes = KEY, *, process: int = 2, listener: int = 0, rail: int = 0, cuts: int = 0) -> ConnectorSide:
    return ConnectorSide(key, process=process, listener=listener, rail=rail, cuts=cuts)


def listener(
    key: bytes = KEY, *, process: int = 0, cuts: int = 0, newest: dict[int, int] | None = None
) -> ListenerSide:
    return ListenerSide(
        key,
        process=process,
        processes=4,
        rail=0,
        newest={} if newest is None else newest,
        expects=lambda _, count: count == cuts,
    )


def test_a_process_of_the_job_is_accepted() -> None:
    one, other = connector(process=3), listener()
    challenge = other.challenge(one.hello)
    proof = one.prove(challenge)
    welcome = other.welcome(proof)
    one.finish(welcome)
    assert other.peer == 3
    assert [*map(len, (one.hello, challenge, proof, welcome))] == [
        HELLO_BYTES,
        CHALLENGE_BYTES,
        PROOF_BYTES,
        WELCOME_BYTES,
    ]


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (connector(secret.key(b"another secret", "job", 1)), "not signed with this job's key"),
        (connector(secret.key(b"a secret of this job", "another job", 1)), "not signed with this job's key"),
        (connector(secret.key(b"a secret of this job", "job", 2)), "not signed with this job's key"),
        (connector(process=2, listener=1), "from process 2 to process 1 on rail 0"),
        (connector(rail=1), "from process 2 to process 0 on rail 1"),
        (connector(process=4), "from process 4 to process 0"),
        (connector(process=0), "from process 0 to process 0"),
    ],
    ids=["secret", "job", "generation", "listener", "rail", "no such process", "itself"],
)
def test_a_hello_of_another_connection_is_refused(one: ConnectorSide, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        listener().challenge(one.hello)


def test_a_hello_of_another_version_is_refused_with_both() -> None:
    hello = connector().hello
    with pytest.raises(Refused, match=f"speaks version 1 of jaxcomm's protocol, and this process version {VERSION}"):
        listener().challenge(hello[:7] + b"1" + hello[8:])


def test_a_lower_process_does_not_connect() -> None:
    with pytest.raises(Refused, match="from process 1 to process 2"):
        listener(process=2).challenge(connector(process=1, listener=2).hello)


def test_a_hello_counts_once() -> None:
    newest: dict[int, int] = {}
    older, one, other = connector(), connector(), connector(process=3)
    listener(newest=newest).challenge(one.hello)
    for each in (one, older):
        with pytest.raises(Refused, match="its hello is not newer than the last one"):
            listener(newest=newest).challenge(each.hello)
    listener(newest=newest).challenge(other.hello)
    listener(newest=newest).challenge(connector().hello)
    assert sorted(newest) == [2, 3]  # and no more with more hellos


def test_a_connection_after_another_count_of_cuts_is_refused() -> None:
    for cuts in (0, 6, 8):
        with pytest.raises(NotExpected, match=f"process 2 connects after {cuts} cuts of the rail, which is not exp"):
            listener(cuts=7).challenge(connector(cuts=cuts).hello)
    side = listener(cuts=7)
    side.challenge(connector(cuts=7).hello)
    assert (side.peer, side.cuts) == (2, 7)


def test_a_whole_conversation_that_is_replayed_is_refused() -> None:
    one, other = connector(), listener()
    hello, challenge = one.hello, other.challenge(one.hello)
    proof = one.prove(challenge)
    welcome = other.welcome(proof)
    again = listener()
    again.challenge(hello)
    with pytest.raises(Refused, match="does not prove that it is process 2"):
        again.welcome(proof)
    later = connector()
    with pytest.raises(Refused, match="challenge is not signed"):
        later.prove(challenge)
    later.prove(listener().challenge(later.hello))
    with pytest.raises(Refused, match="welcome is not signed"):
        later.finish(welcome)


def test_messages_that_are_reflected_are_refused() -> None:
    one, other = connector(), listener()
    with pytest.raises(Refused):
        one.prove(one.hello[-CHALLENGE_BYTES:])
    one = connector()
    challenge = other.challenge(one.hello)
    proof = one.prove(challenge)
    with pytest.raises(Refused):
        one.finish(proof)
    with pytest.raises(Refused):
        other.welcome(challenge[-PROOF_BYTES:])


def test_a_listener_that_does_not_know_the_key_is_refused() -> None:
    one = connector()
    with pytest.raises(Refused, match="challenge is not signed"):
        one.prove(bytes(CHALLENGE_BYTES))


def test_changed_messages_are_refused() -> None:
    """One message of a handshake is changed each time: some bits, or all bytes from a place on."""
    draw = random.Random(0)
    longest = max(HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES, WELCOME_BYTES)
    noise = draw.randbytes(1 << 20)  # drawn once: cutting pieces out of it is much quicker

    def drawn(length: int) -> bytes:
        at = draw.randrange(len(noise) - longest)
        return noise[at : at + length]

    def changed(message: bytes) -> bytes:
        kind = draw.randrange(4)
        if kind == 0:
            return drawn(len(message))
        if kind == 1:
            at = draw.randrange(len(message))
            return message[:at] + drawn(len(message) - at)
        bits = bytearray(message)
        for _ in range(draw.choice((1, 1, 2, 8))):
            bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
        return bytes(bits)

    refused = 0

    def refuse(step: Callable[[bytes], object], message: bytes) -> bytes:
        nonlocal refused
        for _ in range(32):
            if (bad := changed(message)) != message:
                try:
                    step(bad)
                    raise AssertionError(f"{step} accepts {bad!r} instead of {message!r}")
                except Refused:
                    refused += 1
        return message

    while refused < CHANGED_MESSAGES:
        one, other = connector(), listener()
        challenge = other.challenge(refuse(other.challenge, one.hello))
        proof = one.prove(refuse(one.prove, challenge))
        one.finish(refuse(one.finish, other.welcome(refuse(other.welcome, proof))))
