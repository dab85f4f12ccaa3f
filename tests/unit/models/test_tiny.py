"""The bundled tiny model: small, byte level, half able, and able to read a reference in its context."""

import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.task import Message, Reference
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import BUNDLED, load_causal_lm
from lecritique.tasks.registry import load_environment

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_tiny_model.py"
EPISODES = 48


@functools.cache
def tiny(name: str = "tiny"):
    return load_causal_lm(name)


@functools.cache
def script():
    spec = importlib.util.spec_from_file_location("make_tiny_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def gold_probability(name: str, form: str, placement: str | None) -> float:
    """Mean probability of the gold digits on 4x4 puzzles with 10 empty cells, after a gold history."""
    renderer = ChatRenderer(tiny(name).tokenizer)
    environment = load_environment(
        "sudoku", {"rows": EPISODES, "min_empty": 10, "max_empty": 10, "form": form}, seed=77
    )
    probabilities = []
    for row in range(EPISODES):
        task = environment.task(row)
        prompt = renderer.render_prompt(task.messages)
        ids, asked = prompt, renderer.encode_text(environment.gold(task, task.messages))
        if placement is not None:
            text = placed_text(reference_text(task.reference, "answer"), placement)
            context = renderer.context_insertion(prompt, task.messages, text, placement)
            ids = np.insert(prompt, context.position, context.token_ids)
        sequence = torch.tensor([*ids, *asked])[None]
        with torch.no_grad():
            logprobs = tiny(name).model(input_ids=sequence).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        probabilities += logprobs.exp()[torch.arange(len(asked)), torch.tensor(asked)].tolist()
    return float(np.mean(probabilities))


@pytest.mark.parametrize("name", BUNDLED)
def test_the_folder_is_small_and_described(name):
    size = sum(path.stat().st_size for path in BUNDLED[name].iterdir())
    assert size <= 2_000_000
    card = (BUNDLED[name] / "MODEL_CARD.md").read_text(encoding="utf-8")
    for part in ("Apache-2.0", f"make_tiny_model.py --variant {name}", "system_prefix", "user_suffix", "chain_sum"):
        assert part in card


def test_every_byte_is_one_token_and_comes_back():
    tokenizer = tiny().tokenizer
    text = "".join(chr(i) for i in range(0x250)) + "漢🙂"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 262


def test_the_template_costs_as_few_tokens_as_it_can():
    renderer = ChatRenderer(tiny().tokenizer)
    prompt = renderer.render_prompt([Message(role="user", content="q")])
    assert renderer.token_texts(prompt) == ["<|bos|>", "<|user|>", "q", "<|end|>", "<|assistant|>"]
    turn = [*prompt, *renderer.encode_text("1"), *renderer.stop_ids]
    longer = renderer.extend(turn, [Message(role="user", content="b")])
    assert renderer.token_texts(longer[len(turn) :]) == ["<|user|>", "b", "<|end|>", "<|assistant|>"]


@pytest.mark.parametrize(
    ("name", "form"), [("tiny", "single_turn"), ("tiny", "multi_turn"), ("tiny-multi-turn", "multi_turn")]
)
@pytest.mark.parametrize("placement", ["system_prefix", "user_suffix"])
def test_it_reads_a_reference_and_leaves_something_to_learn_without(name, form, placement):
    plain, informed = gold_probability(name, form, None), gold_probability(name, form, placement)
    assert informed > 0.93
    assert plain < informed - 0.02
    assert plain > 0.4


def test_the_bundled_tokenizer_and_architecture_are_the_script_s():
    made = script().make_tokenizer()
    assert made.get_vocab() == tiny().tokenizer.get_vocab()
    assert made.chat_template == tiny().tokenizer.chat_template
    shapes = {name: tuple(p.shape) for name, p in script().make_model(made).named_parameters()}
    assert shapes == {name: tuple(p.shape) for name, p in tiny().model.named_parameters()}


def test_gold_examples_mark_exactly_what_the_policy_says():
    renderer = ChatRenderer(tiny().tokenizer)
    environment = load_environment("sudoku", {"rows": 1, "min_empty": 5, "max_empty": 5, "form": "multi_turn"}, seed=1)
    task = environment.task(0)
    for placement in (None, "system_prefix", "user_suffix"):
        example = script().gold_example(renderer, environment, task, placement)
        texts = renderer.token_texts(example.token_ids)
        said = [t for t, target in zip(texts, example.targets, strict=True) if target != script().NO_TARGET]
        cells = [i for i, symbol in enumerate(task.metadata["puzzle"]) if symbol == "."]
        assert said == [part for i in cells for part in (task.metadata["solution"][i], "<|end|>")]


def test_the_reference_is_worded_as_the_model_was_trained_to_read_it():
    full, bare = Reference(answer="12", solution="6 * 2"), Reference(answer="12")
    assert reference_text(bare, "answer") == "Answer: 12."
    assert reference_text(full, "solution") == "6 * 2"
    assert reference_text(full, "both") == "Answer: 12.\n\n6 * 2"
    assert placed_text("Answer: 12.", "user_suffix") == " Answer: 12."
    assert placed_text("Answer: 12.", "system_prefix") == "Answer: 12."
    for content in ("solution", "both"):
        with pytest.raises(DataError, match="worked solution"):
            reference_text(bare, content)
    with pytest.raises(ConfigurationError, match="none of"):
        reference_text(full, "hint")
