"""Tokenizers made on the spot: one token a character, with or without a chat template."""

from __future__ import annotations

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'][0] | upper }}:{{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}{{ note | default('') }}"
)


def character_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Prefixes plain text with a beginning token, as Llama's tokenizer does."""
    alphabet = ["<pad>", "<s>", "</s>", "<unk>", *string.printable]
    tokenizer = Tokenizer(
        models.WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    fast.chat_template = template
    return fast
