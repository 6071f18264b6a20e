"""Testbed files: reading, one clear error per mistake, and dry runs. Needs no root."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

import jaxcomm
from jaxcomm import plan, planner, profile, testbed
from jaxcomm.cli import main
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import Layout, Testbed
from tests.cli import documents
from tests.planner.profiles import with_tolerance

Capture = pytest.CaptureFixture[str]

EXAMPLES = sorted((Path(jaxcomm.__file__).parent / "testbed" / "examples").glob("*.toml"))
RAIL = '[[rails]]\nname = "eth0"\nmbit = 500\n'
SECOND = '[[rails]]\nname = "eth1"\nmbit = 125\n'
HOSTS = '[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n'
SWITCH = "\n[switch]\n"
RACK = '[[racks]]\nname = "left"\nuplink_mbit = 100\n'
SPINES = '[[spines]]\nname = "s1"\nmbit = 100\n[[spines]]\nname = "s2"\nmbit = 25\n#2\n'
FABRIC = (
    '[switch]\n[[racks]]\nname = "left"\n#1\n[[racks]]\nname = "right"\n'
    + HOSTS.replace("\n[[", '\nrack = "left"\n[[')
    + 'rack = "right"\n'
    + SPINES
)
CUT = "cuts = [{ at_s = %s }]"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "testbed.toml"


def cut(*fields: str) -> str:
    return "\n".join(["[[cuts]]", 'host = "a"', *fields, ""])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rails = [", "is not TOML: "),
        (RAIL, "hosts is missing"),
        (HOSTS, "rails is missing"),
        (RAIL + '[[hosts]]\nname = "a"\n', "hosts has 1 entries; at least 2 are needed"),
        (RAIL + HOSTS + "mttu = 1", "hosts[1].mttu is not a field of a testbed"),
        ("mtu = 100\n" + RAIL + HOSTS, "mtu is 100; it must be greater than or equal to 1280"),
        ('congestion_control = "vegas"\n' + RAIL + HOSTS, "congestion_control is 'vegas'; it must be 'cubic', "),
        (RAIL.replace("500", "0"), "rails[0].mbit is 0; it must be greater than or equal to 1"),
        (RAIL.replace("500", "nan") + HOSTS, "rails[0].mbit is nan"),
        (RAIL.replace("500", '"fast"') + HOSTS, "rails[0].mbit is 'fast'; it must be a valid number"),
        (RAIL.replace("eth0", "control") + HOSTS, 'rails[0].name is "control", which every host has already'),
        (RAIL + HOSTS.replace('"b"', '"B b"'), 'hosts[1].name is "B b"; a name has 1 to 9 letters'),
        (RAIL + HOSTS.replace('"b"', '"a"'), 'hosts[1].name is "a", which another of the hosts has'),
        (RAIL + HOSTS + "processes = 0", "hosts[1].processes is 0; it must be greater"),
        (RAIL + HOSTS + "delay_s = -1", "hosts[1].delay_s is -1; it must be greater"),
        (RAIL + HOSTS + 'rack = "left"', 'hosts[1].rack is "left"; there are no racks'),
        (RAIL + RACK + HOSTS, "hosts[0].rack is missing; with racks, every host is in one of left"),
        (RAIL + RACK + HOSTS.replace("\n[[", '\nrack = "right"\n[['), 'hosts[0].rack is "right"; the racks are left'),
        (
            RAIL + RACK + RACK.replace("left", "right") + (HOSTS + "#").replace('"\n', '"\nrack = "left"\n'),
            'racks[1], "right", has no host',
        ),
        (RAIL + HOSTS + '[[packet_loss]]\nhost = "c"\nrate = 0.1', 'packet_loss[0].host is "c"; the hosts are a, b'),
        (RAIL + HOSTS + '[[packet_loss]]\nhost = "a"\nrate = 0.9', "packet_loss[0].rate is 0.9; it must be less than"),
        (
            RAIL + HOSTS + 2 * '[[packet_loss]]\nhost = "a"\nrate = 0.1\n',
            "packet_loss[1] is for the same link as packet_loss[0]",
        ),
        (RAIL + SECOND + HOSTS + cut("at_s = 1"), "cuts[0].rail is missing; there are several, eth0, eth1"),
        (RAIL + HOSTS + cut("at_s = 1", 'rail = "eth7"'), 'cuts[0].rail is "eth7"; the rails are eth0'),
        (RAIL + HOSTS + cut("at_s = 1", "repaired_s = 1"), "cuts[0].repaired_s is 1; it must come after at_s, 1"),
        (RAIL + HOSTS + cut("at_s = 1", 'kind = "loud"'), "cuts[0].kind is 'loud'; it must be 'silent', 'one-way'"),
        (RAIL + HOSTS + 2 * cut("at_s = 1"), "cuts[1] begins before cuts[0] of the same link is repaired"),
        (RAIL + HOSTS + '[[flows]]\nsrc = "a"\ndst = "a"', 'flows[0].dst is "a", its src'),
        (RAIL + HOSTS + '[[flows]]\nsrc = "a"\ndst = "b"\nstop_s = 0', "flows[0].stop_s is 0; it must come after"),
        (RAIL + RACK + (HOSTS + "#").replace('"\n', '"\nrack = "left"\n') + SWITCH, "switch is given beside racks"),
        (RAIL + FABRIC.replace("[switch]", ""), "spines are given without a switch, which they are part of"),
        (RAIL + FABRIC + '[[spines]]\nname = "s1"\nmbit = 9', 'spines[2].name is "s1", which another of the spines'),
        (RAIL + FABRIC.replace("#1", "uplink_mbit = 9"), "racks[0].uplink_mbit is given beside spines"),
        (RAIL + RACK.replace("uplink_mbit", "#") + HOSTS, "racks[0].uplink_mbit is missing; without spines, every"),
        (
            RAIL + HOSTS + SWITCH + SPINES,
            "spines has 2 entries and racks 0; a leaf-spine network has at least 2 of each",
        ),
        (RAIL + FABRIC.replace("#2", CUT % "2, repaired_s = 1"), "spines[1].cuts[0].repaired_s is 1; it must come aft"),
        (RAIL + FABRIC.replace("#2", CUT % "2 }, { at_s = 3"), "spines[1].cuts[1] begins before an earlier cut of"),
        (RAIL + HOSTS + SWITCH + "buffer_bytes = 1513", "switch.buffer_bytes is 1513; a packet has up to 1514"),
        (RAIL + HOSTS + SWITCH + "limits = [1, 2]", "switch.limits has 2 entries; at least 8 are needed"),
        (RAIL + HOSTS + SWITCH + f"threshold_bytes = 1\nthresholds = {[9] * 8}", "threshold_bytes is given beside thr"),
        (RAIL + HOSTS + SWITCH + 'plan = "plan.json"\nbuffer_bytes = 65536', "plan is given beside buffer_bytes"),
    ],
)
def test_a_mistake_has_its_place(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(JaxcommError) as found:
        testbed.load(file)
    assert str(found.value).startswith(f"{file}: ") and message in str(found.value)
    assert "\n  Cure: mend " in str(found.value)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(JaxcommError, match=r"cannot be read: No such file or directory\.\n  Cure: check the path"):
        testbed.load(file)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_testbeds_of_four_hosts(path: Path) -> None:
    found = testbed.load(path)
    assert [host.name for host in found.hosts] == ["a", "b", "c", "d"] and found.processes == 4
    longest = max(len(device) for device in devices(Layout(found, "0")))
    assert longest <= 15  # the kernel's IFNAMSIZ


def test_an_example_is_found_by_its_name_unless_a_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert testbed.examples() == [path.name for path in EXAMPLES]
    assert testbed.load("racks.toml") == testbed.load(next(path for path in EXAMPLES if path.name == "racks.toml"))
    (tmp_path / "racks.toml").write_text("")
    with pytest.raises(JaxcommError, match=r"racks\.toml"):
        testbed.load("racks.toml")


def devices(layout: Layout) -> set[str]:
    return {command[i + 1] for command in testbed.build(layout) for i, word in enumerate(command) if word == "dev"}


def test_the_picture_shows_racks_hosts_and_what_goes_wrong(file: Path) -> None:
    racks = RACK + RACK.replace("left", "right")
    hosts = (
        '[[hosts]]\nname = "a"\nrack = "left"\nprocesses = 2\ndelay_s = 0.05\n[[hosts]]\nname = "b"\nrack = "right"\n'
    )
    wrong = (
        '[[packet_loss]]\nhost = "b"\nrate = 0.01\n' + cut("at_s = 2") + '[[flows]]\nsrc = "a"\ndst = "b"\nstop_s = 9\n'
    )
    file.write_text(RAIL + racks + hosts + wrong)
    assert testbed.picture(Layout(testbed.load(file), "1a2b3c4d")).splitlines() == [
        "testbed 1a2b3c4d: 2 hosts, 3 processes, cubic, MTU 1500",
        "rail eth0: 10.77.0.0/24, 500 Mbit/s per host",
        "traffic: a → b over eth0, from 0 s to 9 s",
        "├─ rack left: uplink 100 Mbit/s",
        "│  └─ a: processes 0–1, late by 50 ms, eth0 cut (silent) from 2 s",
        "└─ rack right: uplink 100 Mbit/s",
        "   └─ b: process 2, eth0 loses 1 % of packets",
    ]


def test_events_come_in_the_order_of_their_times(file: Path) -> None:
    late = cut("at_s = 5", "repaired_s = 6") + cut("at_s = 1", "repaired_s = 2", 'kind = "down"')
    file.write_text(RAIL + HOSTS + late + '[[flows]]\nsrc = "a"\ndst = "b"\nstart_s = 3\n')
    events = testbed.timeline(Layout(testbed.load(file), "0"))
    assert [(event.at_s, event.text) for event in events] == [
        (1, "the link of a to eth0 is cut (down)"),
        (2, "the link of a to eth0 is repaired"),
        (3, "traffic from a to b over eth0 starts"),
        (3, "traffic from a to b over eth0 starts"),
        (5, "the link of a to eth0 is cut (silent)"),
        (6, "the link of a to eth0 is repaired"),
    ]
    assert [event.stays for event in events] == [False, False, True, True, False, False]


def test_thresholds_of_a_switch_follow_from_one_or_are_listed(file: Path) -> None:
    file.write_text(RAIL + HOSTS + SWITCH + "buffer_bytes = 65536\nthreshold_bytes = 32000")
    by_one = testbed.load(file).switch
    assert by_one and by_one.ordinary == (32000, 28000, 24000, 20000, 16000, 12000, 8000, 4000)
    assert by_one.important == (65536,) * 8
    listed = list(range(8000, 0, -1000))
    file.write_text(RAIL + HOSTS + SWITCH + f"thresholds = {listed}\nlimits = {listed}")
    by_list = testbed.load(file).switch
    assert by_list and by_list.ordinary == by_list.important == tuple(listed)
    assert testbed.TestbedSwitch().ordinary[0] == 256 * 1024


def test_a_switch_has_the_thresholds_of_a_plan(tmp_path: Path, file: Path) -> None:
    def save(**tolerance: object) -> None:
        content = with_tolerance(3, 4, **tolerance)
        plan.save(planner.plan(profile.validate(content, "profile.json")), tmp_path / "plan.json")

    file.write_text(RAIL + HOSTS + SWITCH + 'plan = "plan.json"')
    save(switch={"queues": 4, "buffer_packets": 40, "load": 0.9})
    found, drops = testbed.load(file).switch, plan.load(tmp_path / "plan.json").drops
    assert found and drops and drops.buffer and found.buffer_bytes == 40 * 1514
    queues = drops.buffer.queues
    assert [bool(queue.large) for queue in queues] == [True, True, True, False]  # three layers fill three queues
    assert found.ordinary[:4:-1] == tuple(1514 * queue.small for queue in queues[:3])  # queue 0 has priority 7
    assert found.important[:4:-1] == tuple(1514 * queue.large for queue in queues[:3])
    assert found.ordinary[:5] == testbed.TestbedSwitch(buffer_bytes=40 * 1514).ordinary[:5]
    assert f"{', '.join(map(str, found.ordinary))}, of plan.json" in testbed.picture(Layout(testbed.load(file), "0"))

    save(switch={"queues": 9, "buffer_packets": 40, "load": 0.9})
    with pytest.raises(JaxcommError, match=r"switch.plan is for 9 queues; a port of the switch has 8"):
        testbed.load(file)
    save()
    with pytest.raises(JaxcommError, match=r'switch.plan is "plan.json", which has no thresholds.\n  Cure: plan from'):
        testbed.load(file)


def test_links_to_a_switch_are_taps_which_it_cuts_itself(file: Path) -> None:
    cuts = cut("at_s = 1", "repaired_s = 2") + cut("at_s = 3", 'kind = "slow"', "mbit = 5")
    file.write_text(RAIL + HOSTS + cuts + '[[packet_loss]]\nhost = "a"\nrate = 0.25' + SWITCH)
    layout = Layout(testbed.load(file), "0")
    built = [" ".join(command) for command in testbed.build(layout)]
    assert "ip -n jaxcomm-0-a tuntap add dev eth0 mode tap" in built
    assert not any("nft" in command or "n0host0" in command for command in built)
    links = [event.link for event in testbed.timeline(layout) if event.link]
    assert links == [("a", "eth0", 500, 1), ("a", "eth0", 500, 0.25), ("a", "eth0", 5, 0.25)]
    assert "the program nft" not in {each.name for each in testbed.requirements(layout.testbed)}


def test_spines_connect_racks_and_fail_at_their_times(file: Path) -> None:
    cuts = CUT % "1, repaired_s = 2 }, { at_s = 3, mbit = 5"
    file.write_text(RAIL + SECOND + FABRIC.replace("#2", cuts))
    layout = Layout(testbed.load(file), "0")
    assert not any("rack" in " ".join(command) for command in testbed.build(layout))
    assert [layout.leaf(host, rail) for rail in ("eth0", "eth1") for host in "ab"] == [0, 1, 2, 3]
    states = [(event.at_s, event.spine) for event in testbed.timeline(layout)]
    assert states == [(1, ("s2", 25, 1)), (2, ("s2", 25, 0)), (3, ("s2", 5, 0))]
    drawn = testbed.picture(layout)
    assert "spine s2: 25 Mbit/s per rack, fails from 1 s to 2 s, 5 Mbit/s from 3 s\n" in drawn
    assert "├─ rack left: leaf switch, no uplink\n" in drawn


def test_processes_know_their_host(file: Path) -> None:
    file.write_text(RAIL + SECOND + HOSTS + "processes = 2\ndelay_s = 0.25\n")
    layout = Layout(testbed.load(file), "1a2b3c4d")
    found = testbed.environments(layout)
    assert testbed.coordinator(layout) == "10.77.255.1:7600"  # in the control network
    assert [each["JAXCOMM_HOST"] for each in found] == ["a", "b", "b"]
    assert [each["JAXCOMM_RAILS"] for each in found] == ["eth0:500,eth1:125"] * 3
    assert [each["JAXCOMM_TESTBED_DELAY_S"] for each in found] == ["0", "0.25", "0.25"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_dry_run_prints_commands_and_runs_none(path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "Popen", None)  # subprocess.run needs Popen, too
    words = ["testbed", "run", str(path), "--dry-run", "--", "sh", "train.sh", "--steps", "3"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("testbed 00000000: 4 hosts") and "ip netns add jaxcomm-00000000-d\n" in text
    assert text.count("sh train.sh --steps 3\n") == 4
    assert main([*words[:3], "--json", *words[3:]]) == 0
    document = documents.document(capsys.readouterr().out)
    assert len(document["processes"]) == 4 and set(document["build"]) <= set(text.splitlines())


def test_without_root_nothing_is_touched(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert main(["testbed", "run", str(EXAMPLES[0]), "--", "true"]) == 1
    assert capsys.readouterr().err == (
        "error: this testbed needs root, which this machine lacks.\n  Cure: run it as root, for example by sudo.\n"
    )
    assert main(["testbed", "check"]) == 1
    shown = capsys.readouterr()
    assert "root: missing\n" in shown.out and shown.err.startswith("error: a testbed needs root")


def test_a_program_that_is_not_there_has_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "nft" else f"/usr/sbin/{tool}")
    cures = {each.name: each.cure for each in testbed.requirements()}
    assert cures["the program nft"] == "apt-get install nftables" and not cures["the program ip"]
    calm = testbed.load(next(path for path in EXAMPLES if path.stem == "racks"))
    assert "the program nft" not in {each.name for each in testbed.requirements(calm)}  # no packet loss


def test_bad_usage(capsys: Capture) -> None:
    assert main(["testbed", "run", "x.toml"]) == 2
    assert "the following arguments are required: command" in capsys.readouterr().err
    assert main(["testbed", "run", "x.toml", "--time-limit", "0", "--", "true"]) == 2
    assert "'0' is not a number of seconds above 0, at most 86400; write for example 20" in capsys.readouterr().err


def test_the_files_in_the_guide_are_testbeds() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "testbed.md").read_text()
    whole, switch, fabric = (part.split("```")[0] for part in guide.split("```toml\n")[1:])
    found = Testbed.model_validate(tomllib.loads(whole))
    assert found.racks and found.packet_loss and found.cuts and found.flows
    assert found.switch is None and Testbed.model_validate(tomllib.loads(RAIL + HOSTS + switch)).switch
    assert Testbed.model_validate(tomllib.loads(RAIL + fabric)).spines[1].cuts[1].mbit == 10
    others = (
        switch.replace("\nthreshold_bytes", "\n#").replace("# thresholds", "thresholds").replace("# limits", "limits")
    )
    listed = Testbed.model_validate(tomllib.loads(RAIL + HOSTS + others)).switch
    assert listed and listed.thresholds and listed.limits
