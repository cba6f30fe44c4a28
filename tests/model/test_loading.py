from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from roost.config import ModelConfig
from roost.errors import ModelError
from roost.model import loading, source
from roost.model.outline import outline
from support.small_models import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path) -> torch.nn.Module:
    where = source.find_model(ModelConfig(path=str(folder)))
    config = loading.load_model_config(where)
    return loading.load_module(where, config, torch.float32, torch.device("cpu"))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_weights_arrive_as_saved(folder: Path) -> None:
    expected = build("llama").state_dict()
    loaded = load(folder).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load(tmp_path / "absent")


def test_a_run_that_is_not_there_is_not_sought_at_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not source.find_model(ModelConfig(path="runs/other")).local
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").touch()
    with pytest.raises(ModelError, match=r"'runs/miny': no such folder\. Did you mean 'runs/mine'"):
        source.find_model(ModelConfig(path="runs/miny"))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load(tmp_path)


def test_an_adapter_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter"):
        load(tmp_path)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \.safetensors weights.*pytorch_model\.bin"):
        load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_config(folder, num_hidden_layers=4)
    with pytest.raises(ModelError, match=r"lack \d+ tensors .*'model\.layers\.3\."):
        load(folder)


def test_another_shape_is_named(folder: Path) -> None:
    change_config(folder, intermediate_size=80)
    with pytest.raises(ModelError, match=r"another shape .*\(48, 64\) instead of \(48, 80\)"):
        load(folder)


def test_nan_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"NaN or infinity, in 'model\.norm\.weight'"):
        load(folder)


def test_a_cut_off_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"its weights cannot be loaded"):
        load(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json' is not JSON"):
        load(folder)


def test_an_unknown_architecture(folder: Path) -> None:
    change_config(folder, model_type="nonsense")
    with pytest.raises(ModelError, match="`nonsense`"):
        load(folder)


def test_an_encoder_decoder(folder: Path) -> None:
    change_config(folder, model_type="t5", is_encoder_decoder=True)
    with pytest.raises(ModelError, match="with an encoder"):
        load(folder)


def test_a_hub_id_offline_says_what_to_do() -> None:
    where = source.find_model(ModelConfig(path="nobody/nothing"))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE=1"):
        loading.load_model_config(where)


def test_a_folder_without_tokenizer(folder: Path) -> None:
    where = source.find_model(ModelConfig(path=str(folder)))
    with pytest.raises(ModelError, match=r"holds no tokenizer.*model\.tokenizer"):
        loading.load_tokenizer(where)


def test_cuda_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="torch finds no GPU"):
        loading.choose_device(ModelConfig(device="cuda"))
    assert loading.choose_device(ModelConfig()).type == "cpu"


def test_precision_by_size() -> None:
    assert loading.choose_dtype(ModelConfig(), 1_000_000) is torch.float32
    assert loading.choose_dtype(ModelConfig(), 135_000_000) is torch.bfloat16
    assert loading.choose_dtype(ModelConfig(dtype="float32"), 10**10) is torch.float32


def test_parameters_are_counted_without_loading(folder: Path) -> None:
    where = source.find_model(ModelConfig(path=str(folder)))
    config = loading.load_model_config(where)
    skeleton = outline(where, config)
    assert sum(p.numel() for p in skeleton.parameters()) == sum(
        p.numel() for p in load(folder).parameters()
    )


def test_fingerprint_sees_a_changed_weight(folder: Path) -> None:
    where = source.find_model(ModelConfig(path=str(folder)))
    before = source.fingerprint(where)
    assert source.fingerprint(where) == before
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert source.fingerprint(where) != before
