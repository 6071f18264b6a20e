"""Where ranks are, from other tools' files: hosts, racks, NICs, and one clear error for each way to be wrong."""

from __future__ import annotations

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
    own = read(
        SMI.replace("NIC0\tNIC1\tCPU", "mlx5_0\tmlx5_1\tmlx5_2\tmlx5_3\tCPU")
        .replace("\t0-31", "\tPXB\tPXB\t0-31")
        .replace("\t32-63", "\tSYS\tSYS\t32-63"),
        tmp_path,
    )
    assert own.topology is not None and own.topology.nic == "rank", "as many NICs near GPUs as GPUs, older names"


def test_topology_of_nccl(tmp_path: Path) -> None:
    found = read(XML, tmp_path)
    assert found.topology is not None
    assert (found.ranks, found.topology.hosts, found.topology.nic) == (2, (0, 0), "rank")
    assert found.link.beta_s_per_byte == pytest.approx(1 / (18 * 20.6e9))
    assert found.topology.slow == pytest.approx(18 * 20.6e9 / (400e9 / 8), rel=1e-3)
    pcie = read(XML.replace("<nvlink", "<other").replace('"400000"', '"-1"'), tmp_path)
    assert pcie.link.beta_s_per_byte == pytest.approx(1 / 48e9), "32 GT/s, 16 lanes"
    assert pcie.topology is not None and pcie.topology.slow == pytest.approx(38.4), "a NIC that does not say: 10 Gbit/s"
    shared = read(XML.replace("<net ", "<other ", 1), tmp_path)
    assert shared.topology is not None and shared.topology.nic == "host"


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
    assert found.network is not None and found.network.hosts == (0,) * 4 + (1,) * 4 + (2,) * 4
    with pytest.raises(ProfileError, match="no description of one host's ranks"):
        profile.on_hosts(found, 2)


def test_a_measured_profile_learns_where_its_ranks_are(tmp_path: Path) -> None:
    host, rates = read(XML, tmp_path), read(HOSTS, tmp_path)
    placed = profile.with_network(measured(6), host)
    assert placed.topology is not None and placed.topology.hosts == (0, 0, 1, 1, 2, 2)
    assert placed.link == measured(6).link and "network of file" in placed.provenance.source
    by_name = profile.with_network(measured(4, hosts=["x", "y", "x", "y"]), host)
    assert by_name.topology is not None and by_name.topology.hosts == (0, 1, 0, 1)
    assert profile.with_network(measured(5), rates).racks == rates.racks
    hosts = profile.on_hosts(host, rates.ranks)  # without names, of which there are as many as rates
    assert [len(rack.ranks) for rack in profile.with_network(hosts, rates).racks] == [
        host.ranks * len(rack.ranks) for rack in rates.racks
    ]
    names = ["b3", "a1", "b1", "a2", "b2"]
    racks = profile.with_network(measured(10, hosts=[*names, *names]), rates).racks
    assert [rack.ranks for rack in racks] == [[1, 3, 6, 8], [0, 2, 4, 5, 7, 9]]


ALIKE = "bandwidth (GB/s)\n  0 1\n0 - 5\n1 5 -\n"
CONTRADICTIONS = {
    "ranks": (measured(7), XML, "describe a host of as many ranks"),
    "hosts": (measured(6), HOSTS, "is of 6 ranks on 6 hosts; file is of 5 ranks"),
    "nothing told": (measured(2), ALIKE, "tells no hosts, racks or slow NICs"),
}


@pytest.mark.parametrize(("into", "content", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_refuses_a_network_of_another_cluster(into: Profile, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as error:
        profile.with_network(into, read(content, tmp_path))
    assert message in str(error.value)


REFUSED = {
    "smi: a cell": (SMI.replace("PXB", "PXX", 1), "file:2: GPU0 has 'PXX', which is no link"),
    "smi: cut short": (SMI[: SMI.index("GPU3\tSYS") + 12], "file:5: GPU3 has 2 of 6 links"),
    "smi: no header": (SMI[SMI.index("GPU0\t X") :], "names 0 GPUs in its header and has rows of 0"),
    "smi: a row is lost": (SMI.replace("GPU1\tNV12", "GPU9\tNV12"), "names 4 GPUs in its header and has rows of 4"),
    "xml: cut short": (XML[:-20], "cannot be read as XML"),
    "xml: entities": ("<!DOCTYPE x>" + XML, "declares entities"),
    "xml: a speed": (XML.replace('"400000"', '"fast"'), "<net> has speed='fast'"),
    "xml: one GPU": (XML.replace("<gpu ", "<other ").replace("</gpu>", "</other>"), "has 0 GPUs"),
    "rates: zero": (HOSTS.replace("9.41", "0.00", 1), "file:3: 0.00 is no rate"),
    "rates: a value short": (HOSTS.replace("  4.72", "", 1), "file:3: has 4 values for 5 names"),
    "rates: no matrix": ("bandwidth (GB/s)\n\n", "no whole matrix of rates"),
    "rates: one alone": ("bandwidth (GB/s)\n0 1 2\n0 - 5 -\n1 5 - -\n2 - - -\n", "'2' was measured with no other"),
    "rates: two sets": (HOSTS + ALIKE, "of 5 and of 2 ranks whose names differ"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as error:
        read(content, tmp_path)
    assert message in str(error.value)
    assert "\n  Cure: " in str(error.value)
