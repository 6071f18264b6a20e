"""Hosts, racks and NICs from the files of other tools, and one clear error for each kind of invalid file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import profile
from jaxcomm.errors import ProfileError
from jaxcomm.profile import Profile

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMI, XML, HOSTS, GPUS = (
    (FIXTURES / name).read_text()
    for name in ("nvidia_smi_topo.txt", "nccl_topology.xml", "pair_rates_of_hosts.txt", "pair_rates_of_gpus.txt")
)


def read(content: str, folder: Path) -> Profile:
    (folder / "file").write_text(content)
    return profile.read_any(folder / "file")


def measured(ranks: int, **fields: Any) -> Profile:
    link = {"alpha_s": 1e-6, "beta_s_per_byte": 1e-11, "source": "made up"}
    provenance = {"source": "made up", "tool": "none"}
    return profile.validate(
        {"format": "jaxcomm-profile", "version": 1, "ranks": ranks, "link": link, "provenance": provenance} | fields,
        "made up",
    )


def test_matrix_of_nvidia_smi(tmp_path: Path) -> None:
    found = read(SMI, tmp_path)
    assert found.topology is not None
    assert (found.ranks, found.topology.nic, found.topology.slow) == (4, "host", 4.0)
    assert "4 GPUs, 2 NICs" in found.link.source and "α assumed 3 µs" in found.link.source
    assert (found.topology.hosts, found.topology.racks) == ((0, 0, 1, 1), (0, 0)), "NVLinks join pairs only"
    own = read(
        SMI.replace("SYS\tSYS\tPXB", "NV12\tSYS\tPXB")
        .replace("NIC0\tNIC1\tCPU", "mlx5_0\tmlx5_1\tmlx5_2\tmlx5_3\tCPU")
        .replace("\t0-31", "\tPXB\tPXB\t0-31")
        .replace("\t32-63", "\tSYS\tSYS\t32-63"),
        tmp_path,
    )
    assert own.topology is not None and own.topology.nic == "rank", "as many NICs near GPUs as GPUs, older names"
    assert own.topology.hosts == (0, 0, 0, 0), "over NVLinks of others all are joined"


def test_topology_of_nccl(tmp_path: Path) -> None:
    found = read(XML, tmp_path)
    assert found.topology is not None
    assert (found.ranks, found.topology.hosts, found.topology.nic) == (2, (0, 0), "rank")
    assert found.link.beta_s_per_byte == pytest.approx(1 / (18 * 20.6e9))
    assert found.topology.slow == pytest.approx(18 * 20.6e9 / (400e9 / 8), rel=1e-3)
    pcie = read(XML.replace("<nvlink", "<other").replace('"400000"', '"-1"'), tmp_path)
    assert pcie.link.beta_s_per_byte == pytest.approx(1 / 22e9), "from socket to socket, which is slower than PCIe"
    assert pcie.topology is not None and pcie.topology.slow == pytest.approx(17.6), "a NIC that does not say: 10 Gbit/s"
    near = read(re.sub('(?s)</cpu>.*<cpu [^>]*"1"[^>]*>', "", XML).replace("<nvlink", "<other"), tmp_path)
    assert near.link.beta_s_per_byte == pytest.approx(1 / 48e9), "32 GT/s, 16 lanes"
    shared = read(XML.replace("<net ", "<other ", 1), tmp_path)
    assert shared.topology is not None and shared.topology.nic == "host"


def xml(links: dict[int, dict[int, int]], tag: str = "nvlink", of_gpu: str = 'sm="80"', pcie: str = "") -> str:
    """NCCL's topology of GPUs, one per CPU socket. `links[i][j]` is the number of links from GPU i to GPU j."""
    cpus = "".join(
        f'<cpu numaid="{gpu}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
        f'<pci busid="000{gpu}:00:00.0" class="0x030200" link_speed="{pcie}" link_width="{16 if pcie else 0}">'
        f'<gpu dev="{gpu}" rank="{gpu}" {of_gpu}>'
        + "".join(f'<{tag} target="000{to}:00:00.0" count="{count}" tclass="0x030200"/>' for to, count in ends.items())
        + "</gpu></pci></cpu>\n"
        for gpu, ends in links.items()
    )
    return f'<system version="1">\n{cpus}<nic><net name="eth0" dev="0" speed="100000"/></nic></system>'


PAIRS = {0: {1: 12}, 1: {0: 12}, 2: {3: 12}, 3: {2: 12}}
CLUSTERS = {
    "pairs": (xml(PAIRS), (0, 0, 1, 1), 240e9, 12e9),  # the file has no PCIe rate, so NCCL's default counts
    "pairs, PCIe faster than sockets": (xml(PAIRS, pcie="32.0 GT/s PCIe"), (0, 0, 1, 1), 240e9, 16e9),
    "pairs that differ": (xml(PAIRS | {2: {3: 4}, 3: {2: 4}}), (0, 0, 1, 1), 80e9, 12e9),
    "pairs dealt out": (xml({0: {2: 12}, 1: {3: 12}, 2: {0: 12}, 3: {1: 12}}), (0, 1, 0, 1), 240e9, 12e9),
    "one without links": (xml({0: {1: 4, 2: 4}, 1: {0: 4, 2: 4}, 2: {0: 4, 1: 4}, 3: {}}), (0, 0, 0, 1), 80e9, 12e9),
    "a ring": (xml({0: {1: 2, 3: 1}, 1: {0: 2, 2: 2}, 2: {1: 2, 3: 2}, 3: {2: 2, 0: 1}}), (0, 0, 0, 0), 40e9, None),
    "no links": (xml({gpu: {} for gpu in range(4)}), (0, 0, 0, 0), 12e9, None),
    "XGMI": (
        xml({a: {b: 1 for b in range(4) if a != b} for a in range(4)}, "xgmi", 'sm="94" gcn="gfx942"'),
        (0, 0, 0, 0),
        48e9,
        None,
    ),
    "XGMI in pairs": (xml({0: {1: 1}, 1: {0: 1}, 2: {3: 1}, 3: {2: 1}}, "xgmi", 'gcn="910"'), (0, 0, 1, 1), 36e9, 12e9),
}


@pytest.mark.parametrize(("content", "groups", "inside", "between"), CLUSTERS.values(), ids=CLUSTERS.keys())
def test_gpus_that_links_join_are_groups(
    content: str, groups: tuple[int, ...], inside: float, between: float | None, tmp_path: Path
) -> None:
    found = read(content, tmp_path)
    assert found.topology is not None and found.topology.hosts == groups
    assert found.link.beta_s_per_byte == pytest.approx(1 / inside)
    if between is None:
        assert found.topology.slow == pytest.approx(inside / 12.5e9, rel=5e-3) if inside > 12.5e9 else 1.0
        assert found.topology.racks == ()
    else:
        assert found.topology.slow == pytest.approx(inside / between, rel=5e-3)
        assert found.topology.racks == (0, 0)
        assert found.topology.uplinks == (pytest.approx(max(1.0, between / 12.5e9)),)
        assert "2 groups" in found.link.source


def test_groups_of_gpus_on_several_hosts(tmp_path: Path) -> None:
    host = read(xml(PAIRS), tmp_path)
    three = profile.on_hosts(host, 3).topology
    assert three is not None and three.hosts == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert (three.racks, three.uplinks) == ((0, 0, 1, 1, 2, 2), (1.0,) * 3)
    by_name = profile.with_network(measured(8, hosts=["x", "y"] * 4), host).topology
    assert by_name is not None and (by_name.hosts, by_name.racks) == ((0, 1, 0, 1, 2, 3, 2, 3), (0, 1, 0, 1))
    again = profile.with_network(profile.with_network(measured(8, hosts=["x", "y"] * 4), host), host)
    assert again.topology == by_name
    racks = [{"name": "a", "ranks": [0, 1, 2, 3]}, {"name": "b", "ranks": [4, 5, 6, 7]}]
    with pytest.raises(ProfileError, match="has 2 racks, and file has groups of GPUs within a host"):
        profile.with_network(measured(8, racks=racks), host)


def test_latencies_of_nvbandwidth_are_in_nanoseconds(tmp_path: Path) -> None:
    latencies = "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)\n  0 1\n0 N/A 826.4\n1 825.8 N/A\n"
    rates = "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n  0 1\n0 N/A 276.1\n1 276.4 N/A\n"
    found = read(f"{rates}\n{latencies}", tmp_path)
    assert found.link.alpha_s == pytest.approx(826.1e-9, rel=1e-3)
    assert "α the median of the latencies" in found.link.source


def test_rates_of_hosts_become_racks(tmp_path: Path) -> None:
    found = read(HOSTS, tmp_path)
    assert found.hosts == ["a1", "a2", "b1", "b2", "b3"]
    assert [(rack.ranks, rack.uplink) for rack in found.racks] == [([0, 1], 2.0), ([2, 3, 4], 2.0)]
    assert found.link.beta_s_per_byte == pytest.approx(8 / 9.4e9, rel=2e-3)
    slow = read(HOSTS.replace("a1       -  9.41", "a1       -  4.70"), tmp_path)
    assert [rack.ranks for rack in slow.racks] == [] and slow.nics == [2.0, 2.0, 1.0, 1.0, 1.0]


def test_matrices_of_gpus_count_by_the_best_of_each_pair_and_both_directions_half(tmp_path: Path) -> None:
    found = read(GPUS, tmp_path)
    assert (found.ranks, found.hosts) == (4, [])
    assert [rack.ranks for rack in found.racks] == [[0, 1], [2, 3]]
    assert found.link.beta_s_per_byte == pytest.approx(1 / 97e9, rel=2e-3)
    assert found.link.alpha_s == pytest.approx(1.5e-6)
    assert found.racks[0].uplink == pytest.approx(97 / 20.26, rel=5e-3), "without P2P these pairs are faster"


def test_one_host_stands_for_several(tmp_path: Path) -> None:
    found = profile.on_hosts(read(SMI, tmp_path), 3)
    assert found.network is not None and found.network.hosts == (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert found.network.racks == (0, 0, 1, 1, 2, 2)
    switched = profile.on_hosts(read(XML, tmp_path), 3)
    assert switched.network is not None and switched.network.hosts == (0, 0, 1, 1, 2, 2)
    with pytest.raises(ProfileError, match="does not describe one host"):
        profile.on_hosts(found, 2)


def test_a_measured_profile_learns_where_its_ranks_are(tmp_path: Path) -> None:
    host, rates = read(XML, tmp_path), read(HOSTS, tmp_path)
    placed = profile.with_network(measured(6), host)
    assert placed.topology is not None and placed.topology.hosts == (0, 0, 1, 1, 2, 2)
    assert placed.link == measured(6).link and "network of file" in placed.provenance.source
    by_name = profile.with_network(measured(4, hosts=["x", "y", "x", "y"]), host)
    assert by_name.topology is not None and by_name.topology.hosts == (0, 1, 0, 1)
    assert profile.with_network(measured(5), rates).racks == rates.racks
    hosts = profile.on_hosts(host, rates.ranks)  # hosts without names, as many as the rates describe
    assert [len(rack.ranks) for rack in profile.with_network(hosts, rates).racks] == [
        host.ranks * len(rack.ranks) for rack in rates.racks
    ]
    names = ["b3", "a1", "b1", "a2", "b2"]
    racks = profile.with_network(measured(10, hosts=[*names, *names]), rates).racks
    assert [rack.ranks for rack in racks] == [[1, 3, 6, 8], [0, 2, 4, 5, 7, 9]]


ALIKE = "bandwidth (GB/s)\n  0 1\n0 - 5\n1 5 -\n"
CONTRADICTIONS = {
    "ranks": (measured(7), XML, "describe a host of as many ranks"),
    "hosts": (measured(6), HOSTS, "has 6 ranks on 6 hosts; file has 5 ranks"),
    "nothing measured": (measured(2), ALIKE, "has no hosts, racks or slow NICs"),
}


@pytest.mark.parametrize(("into", "content", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_refuses_a_network_of_another_cluster(into: Profile, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as error:
        profile.with_network(into, read(content, tmp_path))
    assert message in str(error.value)


REFUSED = {
    "smi: a cell": (SMI.replace("PXB", "PXX", 1), "file:2: GPU0 has 'PXX', which is not a link"),
    "smi: cut short": (SMI[: SMI.index("GPU3\tSYS") + 12], "file:5: GPU3 has 2 of 6 links"),
    "smi: no header": (SMI[SMI.index("GPU0\t X") :], "names 0 GPUs in its header and has rows of 0"),
    "smi: a row is lost": (SMI.replace("GPU1\tNV12", "GPU9\tNV12"), "names 4 GPUs in its header and has rows of 4"),
    "smi: two outputs": (SMI + SMI, "file:18: a second matrix begins with GPU0"),
    "smi: rows of two hosts": (SMI.replace("\nGPU1", "\nGPU0", 1), "file:3: a second matrix begins with GPU0"),
    "xml: cut short": (XML[:-20], "cannot be read as XML"),
    "xml: entities": ("<!DOCTYPE x>" + XML, "declares entities"),
    "xml: a speed": (XML.replace('"400000"', '"fast"'), "<net> has speed='fast'"),
    "xml: one GPU": (XML.replace("<gpu ", "<other ").replace("</gpu>", "</other>"), "has 0 GPUs"),
    "rates: zero": (HOSTS.replace("9.41", "0.00", 1), "file:3: 0.00 is not a rate"),
    "rates: a value short": (HOSTS.replace("  4.72", "", 1), "file:3: has 4 values for 5 names"),
    "rates: no matrix": ("\nbandwidth (GB/s)\n\n", "file:2: no complete matrix of rates is below this title"),
    "rates: one alone": ("bandwidth (GB/s)\n0 1 2\n0 - 5 -\n1 5 - -\n2 - - -\n", "'2' was measured with no other"),
    "rates: two sets": (HOSTS + ALIKE, "of 5 and of 2 ranks whose names differ"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as error:
        read(content, tmp_path)
    assert message in str(error.value)
    assert "\n  Cure: " in str(error.value)
