"""The one workload that every trainer gets: model, prompts, reward, sizes. Needs torch and transformers alone.

A Qwen3 of 0.8M parameters answers 8 prompts of 6 characters 4 times each with exactly 32 tokens; one optimizer step on
the 32 responses. The reward is how many of a response's characters are lower-case letters, so that members of a group
differ.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PROMPTS, GROUP, PROMPT_CHARACTERS, NEW_TOKENS = 8, 4, 6, 32
ROWS = PROMPTS * GROUP
LEARNING_RATE = 1e-6
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# A template without tokens of its own: what is read is the 6 characters.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"  # noqa: E501


def save_model(folder: Path, tokenizer_folder: Path) -> None:
    """Random weights and a tokenizer of one token for each byte, as Hugging Face saves them."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    tokenizer.chat_template = TEMPLATE
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = model_of(len(tokenizer), **special)
    # Every state points along the first coordinate, and special tokens lie against it: none is ever drawn, so that no
    # response ends early, and the other tokens' probabilities do not change.
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[:, 0] = 1.0
        table[list(tokenizer.all_special_ids), 0] = -1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def model_of(vocabulary: int, **special: int) -> Qwen3ForCausalLM:
    """The workload's model with random weights and so large a vocabulary."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **special,
    )
    return Qwen3ForCausalLM(config)


def prompt(row: int) -> str:
    """6 characters of the row's own."""
    return "".join(random.Random(row).choices(LETTERS, k=PROMPT_CHARACTERS))


def reward(text: str) -> float:
    """Share of a response's 32 characters that are lower-case letters."""
    return sum(character in LETTERS for character in text) / NEW_TOKENS


def load(folder: Path) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The model as its peers read it."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)
