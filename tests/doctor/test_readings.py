from __future__ import annotations

import pytest

from roost.doctor.facts import Answer, Facts
from roost.doctor.readings import bus, machine, nvidia, torch_build
from support.machines import GIB, captured, hgx, laptop, linux, switch_pair


def test_a_row_of_the_query_is_read_with_what_the_card_does_not_count() -> None:
    card = nvidia.gpus(switch_pair())[1]
    assert (card.index, card.name, card.address) == (1, "NVIDIA RTX A6000", "0000:04:00.0")
    assert (card.total_mib, card.used_mib, card.driver) == (49140, 4, "580.126.09")
    assert (card.mig, card.uncorrected_errors) == (False, 0)
    assert card.pcie_gbps == pytest.approx(31.5, abs=0.1)


def test_what_is_no_row_is_no_card() -> None:
    text = "No devices were found\n"
    assert nvidia.gpus(Facts(smi_gpus=Answer("nvidia-smi", text))) == []


@pytest.mark.parametrize(
    "header",
    [
        "| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2     |",
        "| NVIDIA-SMI 590.44.01  KMD Version: 590.44.01  CUDA UMD Version: 12.2  |",
    ],
)
def test_the_cuda_of_the_driver_is_in_the_header(header: str) -> None:
    assert nvidia.driver_cuda(Answer("nvidia-smi", header)) == (12, 2)


def test_the_topology_is_read_with_a_network_card_in_it() -> None:
    cells = nvidia.matrix(hgx().smi_topology)
    assert len(cells) == 12
    assert cells[2, 1] == "NV6"
    assert nvidia.all_nvlink(hgx())
    assert not nvidia.all_nvlink(switch_pair())


def test_the_table_of_peer_access_is_read() -> None:
    assert nvidia.matrix(switch_pair().smi_peers) == {(0, 1): "OK", (1, 0): "OK"}


def test_bridges_are_read_with_their_ports_and_bits() -> None:
    found = bus.bridges(captured("switch_pair", "lspci-acs"))
    assert {one.address: one.port for one in found.values()} == {
        "0000:00:01.1": "Root Port",
        "0000:02:08.0": "Downstream Port",
        "0000:02:10.0": "Downstream Port",
    }
    assert found["0000:02:08.0"].on == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert not bus.bridges(captured("switch_pair", "lspci"))["0000:02:08.0"].redirects


def test_without_root_lspci_shows_no_bridge() -> None:
    assert bus.bridges(captured("switch_pair", "lspci-user")) == {}


def test_cards_that_share_a_switch_are_told_from_those_that_do_not() -> None:
    assert bus.sharing_a_switch(switch_pair()) == [("0000:03:00.0", "0000:04:00.0")]
    assert bus.sharing_a_switch(hgx()) == []
    assert bus.ancestors(switch_pair(), "0000:03:00.0") == [
        "0000:00:01.1",
        "0000:01:00.0",
        "0000:02:08.0",
    ]


def test_quotas_of_both_cgroup_versions_are_read_and_the_tightest_holds() -> None:
    second = {
        "/sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/pod/a/cpu.max": "150000 100000\n",
    }
    assert machine.cpu_quota(Facts(files=second)) == 1.5
    first = {
        "/sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us": "200000\n",
        "/sys/fs/cgroup/cpu/docker/cpu.cfs_period_us": "50000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    }
    assert machine.cpu_quota(Facts(files=first)) == 4.0
    assert machine.cpu_quota(Facts()) is None


def test_memory_limits_leave_out_the_page_cache_and_what_means_no_limit() -> None:
    files = {
        "/sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.current": f"{6 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.stat": f"anon {GIB}\nfile {5 * GIB}\nshmem {2 * GIB}\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert machine.memory_limits(Facts(files=files)) == [(8 * GIB, 3 * GIB)]


def test_a_virtual_machine_shows_itself() -> None:
    assert machine.is_virtual(Facts(files=linux(2, 8, virtual=True)))
    assert not machine.is_virtual(Facts(files=linux(2, 8)))


def test_torch_is_read_or_absent() -> None:
    found = torch_build.build(switch_pair())
    assert found is not None
    assert (found.cuda, found.gpus[1].capability) == ((13, 0), (8, 6))
    assert torch_build.build(Facts()) is None
    assert torch_build.visible(laptop()) == ()
