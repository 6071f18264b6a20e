"""A process answers at its socket, and the reader copes with processes that are killed, silent or of other users."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxcomm
from jaxcomm.errors import JaxcommError
from jaxcomm.watch import folder, reader, server
from jaxcomm.watch.reader import Reader


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sockets that no other process uses."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:  # the path of a socket has at most 107 bytes
        monkeypatch.setattr(server, "folder", lambda: Path(made))
        monkeypatch.setattr(reader, "folder", lambda: Path(made))
        yield Path(made)


def test_a_process_answers_until_it_ends(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit = []
    monkeypatch.setattr(server.atexit, "register", at_exit.append)
    before = threading.active_count()
    server.start.__wrapped__()
    for _ in range(2):
        [found] = Reader().read()
    assert (found["pid"], found["process"], found["processes"], found["job"]) == (os.getpid(), 0, 1, "")
    assert found["sites"] == [{k: v for k, v in site.items() if k != "spans"} for site in jaxcomm.stats()]
    assert (found["rails"], found["gone"]) == (jaxcomm.stats().rails, jaxcomm.stats().gone)
    at_exit[0]()
    assert not [*sockets.iterdir()] and threading.active_count() == before
    assert Reader().read() == []


def test_a_forked_child_does_not_answer(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_child, at_exit = [], []
    monkeypatch.setattr(server.os, "register_at_fork", lambda after_in_child: in_child.append(after_in_child))
    monkeypatch.setattr(server.atexit, "register", at_exit.append)
    server.start.__wrapped__()
    in_child[0]()
    with pytest.MonkeyPatch.context() as forked:
        forked.setattr(server.os, "getpid", lambda: -1)
        at_exit[0]()
    assert len([*sockets.iterdir()]) == 1  # the child's exit leaves the parent's socket alone
    at_exit[0]()


def test_sockets_of_killed_processes_are_removed(sockets: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(sockets / "1-killed"))
    with socket.socket(socket.AF_UNIX) as starting:
        starting.bind(str(sockets / ".starting"))
        assert Reader().read() == []
    assert [path.name for path in sockets.iterdir()] == [".starting"]


def test_a_silent_process_keeps_its_latest_snapshot(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'{{"version": {folder.VERSION}, "job": "", "process": 0, "pid": 7, "now_us": 0}}'.encode()
    answers = iter([text, text[:20], b'{"version": 999}'])

    def answer() -> None:
        for content in answers:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(content)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "7-test"))
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        asked = Reader()
        assert [each["pid"] for each in asked.read()] == [7]
        assert [each["pid"] for each in asked.read()] == [7]  # its answer was cut short
        assert asked.read() == []  # it is of another version
        thread.join()
        monkeypatch.setattr(reader, "_ANSWER_S", 0.01)
        asked._latest = {sockets / "7-test": {"version": folder.VERSION, "process": 0, "pid": 7, "now_us": 0}}
        assert [each["pid"] for each in asked.read()] == [7]  # it is stopped


def test_a_process_goes_on_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise JaxcommError("no folder")

    monkeypatch.setattr(server, "folder", refuse)
    before = threading.active_count()
    server.start.__wrapped__()
    assert threading.active_count() == before


def test_only_its_user_may_enter_the_folder(tmp_path: Path) -> None:
    made = tmp_path / "new"
    assert folder.private(made) == made == folder.private(made)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o750)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    for wrong in (made, linked):
        with pytest.raises(JaxcommError, match=r"is not a folder that only its user.*\n  Cure: remove"):
            folder.private(wrong)
    with pytest.raises(JaxcommError, match="cannot be made: File exists"):
        folder.private(Path(__file__))


def test_the_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(JaxcommError, match="is not a folder that only its user"):
        folder.private(tmp_path / "theirs")
