"""Tiny causal language models in the format of Hugging Face, with random weights; nothing is downloaded."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LETTERS = [chr(number) for number in range(33, 127)]

WORDS = ["ĠFirst", "ĠSecond", "ĠSimilar"]


def tiny_llama(directory: Path, **shape: Any) -> Path:
    """Save a Llama of 16 dimensions, and a tokenizer of letters and three words."""
    tokenizer = tiny_tokenizer()
    known = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**known, **shape}))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_tokenizer(words: list[str] = WORDS) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer that knows letters one by one, and a few words as a whole."""
    named = ["<s>", "</s>", "<unk>", "Ġ", "Ċ", *LETTERS, *words]
    vocabulary = {token: number for number, token in enumerate(named)}
    whole = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", ignore_merges=True))  # noqa: S106
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole,
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
    )
