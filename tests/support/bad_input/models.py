"""Models and tokenizers."""

from __future__ import annotations

import json

import torch

from support.bad_input.case import Arguments, case
from support.desk import Desk

OWN_CODE = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}


def nan_weights(desk: Desk) -> list[str]:
    weights = desk.weights(desk.model())
    weights["model.norm.weight"][2] = torch.nan
    desk.set_weights("model", weights)
    return desk.train(model="model")


def cut_off(desk: Desk) -> list[str]:
    path = desk.root / desk.model() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])
    return desk.train(model="model")


def missing_tensor(desk: Desk) -> list[str]:
    weights = desk.weights(desk.model())
    del weights["model.layers.1.self_attn.q_proj.weight"]
    desk.set_weights("model", weights)
    return desk.check(model="model")


def missing_shard(desk: Desk) -> list[str]:
    desk.model(without="*.safetensors")
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {"model.norm.weight": shards[0], "lm_head.weight": shards[1]}}
    desk.write("model/model.safetensors.index.json", json.dumps(index))
    desk.write(f"model/{shards[0]}", b"")
    return desk.check(model="model")


def pickled(desk: Desk) -> list[str]:
    desk.model(without="*.safetensors")
    desk.write("model/pytorch_model.bin", b"pickle")
    return desk.check(model="model")


def tokenizer_of_another(desk: Desk) -> list[str]:
    desk.model()
    text = (desk.root / "model/tokenizer.json").read_text()
    vocabulary = json.loads(text)
    vocabulary["model"]["vocab"]["1"] = 50_000
    desk.write("model/tokenizer.json", json.dumps(vocabulary))
    return desk.check(model={"tokenizer": "model"})


def no_template(desk: Desk) -> list[str]:
    desk.model(without="chat_template*")
    chat = [{"role": "user", "content": "1+1="}]
    data = desk.rows([{"prompt": chat, "answer": 2}] * 9)
    return desk.check(model="model", data=data)


def broken(name: str) -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.model()
        desk.write(f"model/{name}", '{"a": 1,')
        return desk.check(model="model")

    return arguments


def config(changes: dict[str, object]) -> Arguments:
    return lambda desk: desk.check(model=desk.model(config=changes))


CASES = [
    case(
        "folder-absent",
        lambda desk: desk.check(model="./absent"),
        "model.path = './absent': no such folder",
        "'Qwen/Qwen3-0.6B'",
        "'tiny'",
    ),
    case(
        "folder-misspelt",
        lambda desk: (desk.model(), desk.check(model="./modle"))[-1],
        "model.path = './modle': no such folder. Did you mean 'model'?",
    ),
    case(
        "shipped-model-misspelt",
        lambda desk: desk.check(model="Tiny"),
        "model.path = 'Tiny'",
        "Did you mean 'tiny'?",
    ),
    case(
        "folder-that-looks-like-a-hub-id",
        lambda desk: (desk.write("models/qwen/x", ""), desk.check(model="models/qwem"))[-1],
        "model.path = 'models/qwem'",
        "did you mean 'models/qwen'?",
    ),
    case(
        "a-file",
        lambda desk: desk.check(model=desk.write("model.gguf", b"GGUF")),
        "model.path = 'model.gguf': is a file, not a folder",
    ),
    case(
        "hub-id-offline",
        lambda desk: desk.check(model="nobody/nothing"),
        "model.path = 'nobody/nothing'",
        "HF_HUB_OFFLINE=1",
    ),
    case(
        "no-tokenizer",
        lambda desk: desk.check(model=desk.model(without="tokenizer*")),
        "model.path = 'model' holds no tokenizer",
        "Set model.tokenizer",
    ),
    case(
        "tokenizer-absent",
        lambda desk: desk.check(model={"tokenizer": "./absent"}),
        "model.tokenizer = './absent': no such folder",
    ),
    case(
        "tokenizer-broken",
        broken("tokenizer.json"),
        "model.path = 'model': its tokenizer cannot be loaded",
        "line 1 column 9",
    ),
    case(
        "tokenizer-of-another-model",
        tokenizer_of_another,
        "the tokenizer of 'model' gives token id 50,000",
        "Set model.tokenizer",
    ),
    case("no-chat-template", no_template, "row 1 holds chat messages", "data.chat_template"),
    case(
        "no-config",
        lambda desk: desk.check(model=desk.model(without="config.json")),
        "model.path = 'model' holds no config.json",
        "save_pretrained",
    ),
    case(
        "folder-above-the-model",
        lambda desk: (desk.write("snapshots/one/config.json", ""), desk.check(model="snapshots"))[
            -1
        ],
        "model.path = 'snapshots' holds no config.json",
        "such as 'snapshots/one'",
    ),
    case(
        "config-broken",
        broken("config.json"),
        "'model/config.json' is not JSON",
        "line 1 column 9",
        "download the model again",
    ),
    case(
        "config-contradicts-itself",
        config({"num_attention_heads": 5}),
        "model.path = 'model': its configuration cannot be loaded",
        "not a multiple of the number of attention heads (5)",
    ),
    case(
        "architecture-unknown",
        config({"model_type": "lama"}),
        "model.path = 'model'",
        "model type `lama`",
    ),
    case(
        "encoder-decoder",
        config({"model_type": "t5", "is_encoder_decoder": True}),
        "model.path = 'model' is a t5 model with an encoder",
        "decoder-only",
    ),
    case(
        "no-attention-interface",
        config({"model_type": "mamba"}),
        "model.path = 'model' is a mamba model",
        "attention interface",
    ),
    case(
        "own-code",
        config(OWN_CODE),
        "model.path = 'model' comes with Python code of its own",
        "model.trust_remote_code = true",
    ),
    case(
        "an-adapter",
        lambda desk: (desk.write("model/adapter_config.json", "{}"), desk.check(model="model"))[-1],
        "model.path = 'model' holds an adapter, not a model",
        "base model",
    ),
    case(
        "revision-of-a-folder",
        lambda desk: desk.check(model={"path": desk.model(), "revision": "main"}),
        "model.revision = 'main'",
        "model.path = 'model' is a folder",
    ),
    case(
        "no-weights",
        lambda desk: desk.check(model=desk.model(without="*.safetensors")),
        "model.path = 'model' holds no .safetensors weights",
    ),
    case("pickled-weights", pickled, "no .safetensors weights", "It holds pytorch_model.bin"),
    case(
        "weights-of-another-shape",
        config({"intermediate_size": 80}),
        "model.path = 'model': 9 of its weights have another shape",
        "'model.layers.0.mlp.down_proj.weight': (128, 320) instead of (128, 80)",
    ),
    case(
        "weights-missing",
        missing_tensor,
        "model.path = 'model': its weights lack 1 tensors",
        "'model.layers.1.self_attn.q_proj.weight'",
    ),
    case(
        "shard-missing",
        missing_shard,
        "model.path = 'model' lacks 'model-00002-of-00002.safetensors', one of 2",
    ),
    case(
        "weights-cut-off",
        cut_off,
        "'model/model.safetensors' (100,000 bytes) is cut off or damaged",
        "Download or copy it again",
    ),
    case(
        "weights-nan",
        nan_weights,
        "model.path = 'model': its weights hold NaN or infinity, in 'model.norm.weight'",
    ),
    case(
        "lora-targets-match-nothing",
        lambda desk: desk.check(train={"method": "lora"}, lora={"targets": ["attention"]}),
        "lora.targets: 'attention' matches no linear layer",
        "Known: down_proj, gate_proj, k_proj",
    ),
    case(
        "lora-target-misspelt",
        lambda desk: desk.check(train={"method": "lora"}, lora={"targets": ["q_poj"]}),
        "lora.targets: 'q_poj'",
        "Did you mean 'q_proj'?",
    ),
    case(
        "lora-targets-empty",
        lambda desk: desk.check(train={"method": "lora"}, lora={"targets": []}),
        "lora.targets: is empty",
        "'all-linear'",
    ),
]
