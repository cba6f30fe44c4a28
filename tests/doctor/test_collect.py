from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from roost.cli import main
from roost.doctor import collect
from roost.doctor.checks import driver
from roost.doctor.findings import Level
from roost.doctor.readings import bus, nvidia
from support.machines import levels

SMI = """#!/bin/sh
case "$*" in
  "") cat {folder}/nvidia-smi.txt ;;
  *query*) cat {folder}/gpus.txt ;;
  *-m*) cat {folder}/topology.txt ;;
  *p2p*) cat {folder}/peers.txt ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs that is searched first; no optional part is tried."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(collect.parts, "PARTS", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


@pytest.fixture
def switch_pair_machine(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi, lspci and /sys of two cards below a switch with ACS on, and the IOMMU on."""
    machine = Path(__file__).parents[1] / "support" / "machines" / "switch_pair"
    _program(programs / "nvidia-smi", SMI.format(folder=machine))
    _program(programs / "lspci", f"#!/bin/sh\ncat {machine}/lspci-acs.txt\n")
    devices = tmp_path / "sys" / "bus" / "pci" / "devices"
    devices.mkdir(parents=True)
    above = "pci0000:00/0000:00:01.1/0000:01:00.0"
    for address, port in (("0000:03:00.0", "0000:02:08.0"), ("0000:04:00.0", "0000:02:10.0")):
        real = tmp_path / "sys" / "devices" / above / port / address
        (real / "iommu_group").mkdir(parents=True)
        for name, text in {
            "vendor": "0x10de",
            "class": "0x030000",
            "numa_node": "0",
            "local_cpulist": "0-31",
            "iommu_group/type": "DMA-FQ",
        }.items():
            (real / name).write_text(f"{text}\n")
        (devices / address).symlink_to(real)
    network = devices / "0000:05:00.0"
    network.mkdir()
    (network / "vendor").write_text("0x15b3\n")
    (network / "class").write_text("0x020000\n")
    monkeypatch.setattr(collect, "ROOT", tmp_path)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.usefixtures("switch_pair_machine")
def test_a_machine_is_captured_as_checks_expect_it(tmp_path: Path) -> None:
    facts = collect.collect(tmp_path)
    assert [card.address for card in nvidia.gpus(facts)] == ["0000:03:00.0", "0000:04:00.0"]
    assert list(facts.pci) == ["0000:03:00.0", "0000:04:00.0"]
    assert bus.sharing_a_switch(facts) == [("0000:03:00.0", "0000:04:00.0")]
    assert bus.bridges(facts.lspci.text)["0000:02:08.0"].redirects
    assert nvidia.matrix(facts.smi_topology)[0, 1] == "PIX"
    assert nvidia.matrix(facts.smi_peers)[0, 1] == "OK"
    assert any(text == "DMA-FQ\n" for text in facts.files.values())
    assert facts.packages["torch"].version == facts.torch.last()["version"]
    assert {disk.what_for for disk in facts.disks} == {"runs", "models", "temporary files"}


@pytest.mark.usefixtures("switch_pair_machine")
def test_a_machine_with_faults_exits_with_1_and_lists_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    faults = [finding for finding in report["findings"] if finding["level"] == "fault"]
    assert report["faults"] == len(faults)
    assert {"iommu", "acs"} <= {finding["check"] for finding in faults}
    assert all(finding["means"] and finding["do"] for finding in faults)


def test_a_hanging_nvidia_smi_does_not_hang_the_doctor(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(programs / "nvidia-smi", "#!/bin/sh\nsleep 600\n")
    monkeypatch.setattr(collect, "COMMAND_S", 1.0)
    facts = collect.collect(tmp_path)
    assert facts.smi.late
    found = driver.check(facts)
    assert levels(found) == [Level.FAULT]
    assert found[0].what == "nvidia-smi did not answer within 1 s and was killed"


def test_limits_of_this_process_are_captured_from_its_own_cgroup_upwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("4:cpu,cpuacct:/docker/ab\n3:pids:/\n0::/user/x\n")
    monkeypatch.setattr(collect, "ROOT", tmp_path)
    found = collect._cgroup_files()
    for expected in (
        "user/x/cpu.max",
        "user/memory.max",
        "cpu.max",
        "cpu/docker/ab/cpu.cfs_quota_us",
        "cpu/cpu.cfs_period_us",
    ):
        assert f"/sys/fs/cgroup/{expected}" in found


def test_an_all_reduce_is_collected_by_rank() -> None:
    answers = collect.all_reduce("gloo", 2, 1, 120.0)
    assert [answer.who for answer in answers] == [
        "rank 0 of the all-reduce",
        "rank 1 of the all-reduce",
    ]
    assert all(answer.last()["right"] for answer in answers)
