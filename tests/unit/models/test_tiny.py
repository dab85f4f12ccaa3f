"""The bundled tiny model: small, byte level, half able, and able to read a reference in its context."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lecritique.core.errors import ConfigurationError, DataError
from lecritique.core.task import Message, Reference
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer
from lecritique.models.loading import BUNDLED, load_causal_lm
from lecritique.tasks.registry import load_environment
from scripts.tiny_model.examples import NO_TARGET, checked_example, gold_example
from scripts.tiny_model.mix import END_ID, PREFIX, SUFFIX, VARIANTS
from scripts.tiny_model.shape import make_model, make_tokenizer

EPISODES = 48
KNIGHTS = {
    "style": "terse",
    "kinds": ["role", "and", "or"],
    "max_depth": 1,
    "min_roles": 4,
    "max_roles": 4,
    "split": "held_out",
}
TASKS = {"tiny": "chain_sum", "tiny-multi-turn": "chain_sum", "tiny-knights": "knights and knaves"}


@functools.cache
def tiny(name: str = "tiny"):
    return load_causal_lm(name)


@functools.cache
def gold_probability(name: str, form: str, placement: str | None, content: str = "answer") -> float:
    """Mean probability of the gold answer, on 4x4 Sudoku with 10 empty cells or on four knights and knaves."""
    renderer = ChatRenderer(tiny(name).tokenizer)
    if form == "knights":
        environment = load_environment("knights_knaves", {**KNIGHTS, "rows": EPISODES}, seed=77)
    else:
        options = {"rows": EPISODES, "min_empty": 10, "max_empty": 10, "form": form}
        environment = load_environment("sudoku", options, seed=77)
    probabilities = []
    for row in range(EPISODES):
        task = environment.task(row)
        prompt = renderer.render_prompt(task.messages)
        ids, asked = prompt, renderer.encode_text(environment.gold(task, task.messages))
        if placement is not None:
            text = placed_text(reference_text(task.reference, content), placement)
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
    for part in ("Apache-2.0", f"make_tiny_model.py --variant {name}", "system_prefix", "user_suffix", TASKS[name]):
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


@pytest.mark.parametrize("placement", ["system_prefix", "user_suffix"])
@pytest.mark.parametrize("content", ["answer", "solution", "both"])
def test_the_knights_model_reads_answer_and_worked_solution(placement, content):
    plain = gold_probability("tiny-knights", "knights", None)
    informed = gold_probability("tiny-knights", "knights", placement, content)
    assert informed > 0.93
    # Half of the tokens are letters, which are certain.
    assert 0.75 < plain < informed - 0.02


@pytest.mark.parametrize("name", BUNDLED)
def test_the_bundled_tokenizer_and_architecture_are_the_script_s(name):
    made = make_tokenizer()
    assert made.get_vocab() == tiny(name).tokenizer.get_vocab()
    assert made.chat_template == tiny(name).tokenizer.chat_template
    shapes = {key: tuple(p.shape) for key, p in make_model(made).named_parameters()}
    assert shapes == {key: tuple(p.shape) for key, p in tiny(name).model.named_parameters()}


def test_gold_examples_mark_exactly_what_the_policy_says():
    renderer = ChatRenderer(tiny().tokenizer)
    environment = load_environment("sudoku", {"rows": 1, "min_empty": 5, "max_empty": 5, "form": "multi_turn"}, seed=1)
    task = environment.task(0)
    for reading in (None, PREFIX, SUFFIX):
        example = gold_example(renderer, environment, task, reading)
        texts = renderer.token_texts(example.token_ids)
        said = [t for t, target in zip(texts, example.targets, strict=True) if target != NO_TARGET]
        cells = [i for i, symbol in enumerate(task.metadata["puzzle"]) if symbol == "."]
        assert said == [part for i in cells for part in (task.metadata["solution"][i], "<|end|>")]


def test_every_bundled_model_has_its_variant():
    assert set(VARIANTS) == set(BUNDLED)


def test_checked_examples_want_the_gold_token_up_to_the_first_departure_and_then_the_mark():
    renderer = ChatRenderer(tiny().tokenizer)
    environment = load_environment("knights_knaves", {**KNIGHTS, "rows": 1}, seed=3)
    task = environment.task(0)
    gold = environment.gold(task, task.messages)
    wrong = gold[:3] + ("n" if gold[3] == "k" else "k") + gold[4:]
    sampled = [*renderer.encode_text(wrong), END_ID]
    turn = SimpleNamespace(
        messages=(),
        given_ids=renderer.render_prompt(task.messages),
        completion=SimpleNamespace(token_ids=np.array(sampled)),
        text=wrong,
    )
    rollout = SimpleNamespace(task=task, turns=[turn])
    example = checked_example(renderer, environment, rollout, PREFIX, END_ID)
    said = [target for target in example.targets if target != NO_TARGET]
    assert said == [*renderer.encode_text(gold[:4]), *[END_ID] * 5]
    assert example.token_ids[-len(sampled) :] == sampled


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
