"""Make the bundled tiny model: tokenizer, weights and model card, all from fixed seeds.

    python scripts/make_tiny_model.py --out lecritique/models/tiny
    python scripts/make_tiny_model.py --variant tiny-multi-turn --out lecritique/models/tiny_multi_turn

The model is the base policy of the demo. It solves part of three kinds of task and reads a reference placed in
its context the way a privileged critic sees it, so that a critic copied from it can use one. One thread on a
CPU, some minutes; needs the extra reasoning-gym.

Letters: B rows, L tokens of the longest row, V vocabulary.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lecritique.core.ids import GroupId
from lecritique.core.rollout import GroupRequest, Rollout, Sampling
from lecritique.core.seeds import derive_seed
from lecritique.core.task import Message, Task
from lecritique.critic.templates import placed_text, reference_text
from lecritique.models.chat import ChatRenderer
from lecritique.models.weights import MemoryWeightStore
from lecritique.rollout.collect import collect
from lecritique.rollout.engine import EmbeddedEngine
from lecritique.tasks.protocol import Environment
from lecritique.tasks.registry import load_environment

SPECIAL_TOKENS = ("<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONTEXT_LENGTH = 4096
# Recipes take seeds from 0 upwards; environments hash theirs, so any other number gives other data.
TRAIN_SEED, MEASURE_SEED = 730_001, 910_001
PLACEMENTS = (None, "system_prefix", "user_suffix")
OFTEN_PLAIN = (None, "system_prefix", None, "user_suffix")
SELDOM_PLAIN = PLACEMENTS
PAD_ID = 256 + SPECIAL_TOKENS.index("<|pad|>")
END_ID = 256 + SPECIAL_TOKENS.index("<|end|>")
CHAIN_SUM = {
    "dataset": "chain_sum",
    "dataset_options": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "prompt_template": "{expression}",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of task in the mix: how many examples a step of each phase holds, and what is measured at the end."""

    label: str
    task_type: str
    options: Mapping[str, Any]
    measured_options: Mapping[str, Any]
    rows: int
    per_step: tuple[int, ...]
    checked_per_step: tuple[int, ...]
    placements: tuple[str | None, ...]
    max_turn_tokens: int

    def environment(self, *, measured: bool, rows: int) -> Environment:
        """The training or the measuring data."""
        options = {**(self.measured_options if measured else self.options), "rows": rows}
        seed = MEASURE_SEED if measured else TRAIN_SEED
        return load_environment(self.task_type, options, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Example:
    """Token ids, and what is to be predicted in the place of each (NO_TARGET: nothing)."""

    token_ids: list[int]
    targets: list[int]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs between the two models: what marks a departure in checked examples, and their shares.

    The end token is learnt as a mark soonest and serves a critic best where a response is one turn; between the turns
    of a dialogue it is said anyway, and the pad token, which no dialogue holds, serves better.
    """

    mark: int
    single_turn_gold: int
    checked: tuple[int, int, int]


VARIANTS = {
    "tiny": Variant(mark=END_ID, single_turn_gold=32, checked=(48, 16, 8)),
    "tiny-multi-turn": Variant(mark=PAD_ID, single_turn_gold=28, checked=(36, 28, 8)),
}


def sources(variant: Variant = VARIANTS["tiny"]) -> tuple[Source, ...]:
    """The training mix."""
    sudoku = {"size": 4, "style": "terse"}
    return (
        Source(
            label="sudoku single turn",
            task_type="sudoku",
            options={**sudoku, "form": "single_turn", "min_empty": 4, "max_empty": 11},
            measured_options={**sudoku, "form": "single_turn", "min_empty": 10, "max_empty": 10},
            rows=60_000,
            per_step=(24, variant.single_turn_gold),
            checked_per_step=(0, variant.checked[0]),
            placements=OFTEN_PLAIN,
            max_turn_tokens=18,
        ),
        Source(
            label="sudoku multi turn",
            task_type="sudoku",
            options={**sudoku, "form": "multi_turn", "min_empty": 4, "max_empty": 10},
            measured_options={**sudoku, "form": "multi_turn", "min_empty": 10, "max_empty": 10},
            rows=60_000,
            per_step=(48, 24),
            checked_per_step=(0, variant.checked[1]),
            placements=SELDOM_PLAIN,
            max_turn_tokens=3,
        ),
        Source(
            label="chain_sum",
            task_type="reasoning_gym",
            options=CHAIN_SUM,
            measured_options=CHAIN_SUM,
            rows=2_500,
            per_step=(16, 64),
            checked_per_step=(0, variant.checked[2]),
            placements=OFTEN_PLAIN,
            max_turn_tokens=6,
        ),
    )


# Steps and peak learning rate. Sums are learnt late, once copying and Sudoku work, and so is checking a dialogue
# against the reference: both have their weight in the second phase, which alone has checked examples.
PHASES = ((540, 6e-3), (700, 4e-3))
CHECKING_PHASE = 1
NO_TARGET = -100


def make_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes, each a token, and the special tokens after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:4]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 of a third of a million parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(derive_seed(0, "tiny.init"))
    return Qwen3ForCausalLM(config)


def opening_ids(renderer: ChatRenderer, task: Task, placement: str | None) -> list[int]:
    """The prompt, with the reference where the critic would see it (placement None: without)."""
    prompt = renderer.render_prompt(task.messages)
    if placement is None:
        return prompt.tolist()
    assert task.reference is not None
    text = placed_text(reference_text(task.reference, "answer"), placement)  # type: ignore[arg-type]
    context = renderer.context_insertion(prompt, task.messages, text, placement)  # type: ignore[arg-type]
    at = context.position
    return [*prompt[:at].tolist(), *context.token_ids.tolist(), *prompt[at:].tolist()]


def gold_example(renderer: ChatRenderer, environment: Environment, task: Task, placement: str | None) -> Example:
    """The dialogue of a perfect policy."""
    episode = environment.start(task)
    messages = list(task.messages)
    ids = opening_ids(renderer, task, placement)
    targets = [NO_TARGET] * len(ids)
    while True:
        answer = environment.gold(task, messages)
        turn = [*renderer.encode_text(answer), END_ID]
        ids, targets = ids + turn, targets + turn
        reply = episode.reply(answer)
        if reply.done:
            return Example(token_ids=ids, targets=targets)
        messages += [Message(role="assistant", content=answer), *reply.messages]
        longer = renderer.extend(ids, reply.messages).tolist()
        targets += [NO_TARGET] * (len(longer) - len(ids))
        ids = longer


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows padded on the right to [B, L]; causal attention never looks there."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


class ExampleStream:
    """Gold dialogues of one source, with and without the reference, in an order fixed by the seed."""

    def __init__(self, source: Source, renderer: ChatRenderer, phase: int) -> None:
        self._environment = source.environment(measured=False, rows=source.rows)
        self._placements = source.placements
        self._per_step = source.per_step[phase]
        self.label = source.label
        self._renderer = renderer
        self._random = np.random.default_rng(derive_seed(TRAIN_SEED, f"tiny.stream.{source.label}", attempt=phase))
        self._rows: list[int] = []

    def take_step(self) -> list[Example]:
        """The examples of the next step, going round the placements of the source."""
        return [self._next(self._placements[i % len(self._placements)]) for i in range(self._per_step)]

    def _next(self, placement: str | None) -> Example:
        if not self._rows:
            self._rows = self._random.permutation(len(self._environment)).tolist()
        task = self._environment.task(self._rows.pop())
        return gold_example(self._renderer, self._environment, task, placement)


def checked_example(
    renderer: ChatRenderer, environment: Environment, rollout: Rollout, placement: str, mark: int
) -> Example:
    """A sampled dialogue read beside the reference: the gold token up to the first departure, then `mark`.

    So a reader of the reference has to notice the first token that departs from it, and to remember that.
    """
    ids: list[int] = []
    targets: list[int] = []
    messages: list[Message] = []
    departed = False
    for turn in rollout.turns:
        messages += turn.messages
        gold = [*renderer.encode_text(environment.gold(rollout.task, messages)), END_ID]
        sampled = turn.completion.token_ids.tolist()
        ids += [*turn.given_ids.tolist(), *sampled]
        targets += [NO_TARGET] * len(turn.given_ids)
        for place, token in enumerate(sampled):
            targets.append(mark if departed or place >= len(gold) else gold[place])
            departed = departed or place >= len(gold) or token != gold[place]
        messages.append(Message(role="assistant", content=turn.text))
    opening = opening_ids(renderer, rollout.task, placement)
    plain = len(renderer.render_prompt(rollout.task.messages))
    return Example(token_ids=opening + ids[plain:], targets=[NO_TARGET] * len(opening) + targets[plain:])


class CheckedStream:
    """Dialogues that the model itself samples, refreshed as it changes, each with the reference in its context."""

    # Dialogues sampled at once, and steps until the next ones.
    _POOL, _REFRESH = 512, 40

    def __init__(self, source: Source, renderer: ChatRenderer, model: Qwen3ForCausalLM, *, mark: int) -> None:
        self.label = f"{source.label} checked"
        self._per_step, self._mark = source.checked_per_step[CHECKING_PHASE], mark
        self._source, self._renderer, self._model = source, renderer, model
        self._environment = source.environment(measured=False, rows=source.rows)
        self._random = np.random.default_rng(derive_seed(TRAIN_SEED, f"tiny.checked.{source.label}"))
        self._pool: list[Rollout] = []
        self._steps = 0

    def take_step(self) -> list[Example]:
        """The checked examples of the next training step."""
        if self._steps % self._REFRESH == 0:
            self._pool = self._sampled()
        self._steps += 1
        chosen = self._random.choice(len(self._pool), size=self._per_step, replace=False)
        return [
            checked_example(
                self._renderer, self._environment, self._pool[index], PLACEMENTS[1 + place % 2] or "", self._mark
            )
            for place, index in enumerate(chosen)
        ]

    def _sampled(self) -> list[Rollout]:
        store = MemoryWeightStore()
        engine = EmbeddedEngine(self._model, store, max_rows=128, chunk_tokens=32, prefill_tokens=16384)
        rows = self._random.choice(len(self._environment), size=self._POOL, replace=False).tolist()
        requests = [
            GroupRequest(
                group_id=GroupId(row, self._steps),
                task=self._environment.task(row),
                group_size=1,
                sampling=Sampling(),
                max_turn_tokens=self._source.max_turn_tokens,
                max_total_tokens=CONTEXT_LENGTH,
                seed=TRAIN_SEED,
            )
            for row in rows
        ]
        groups = collect(requests, environment=self._environment, renderer=self._renderer, engine=engine)
        engine.close()
        return [rollout for group in groups for rollout in group if rollout.turns]


Stream = ExampleStream | CheckedStream


def nll_sum(model: Qwen3ForCausalLM, examples: Sequence[Example]) -> tuple[torch.Tensor, int]:
    """Sum of the negative log-likelihood of the targets in nats, and their number."""
    tokens_BL = padded([e.token_ids for e in examples], PAD_ID)
    targets_BL = padded([e.targets for e in examples], NO_TARGET)[:, 1:]
    chosen = targets_BL != NO_TARGET
    hidden_BLD = model.model(input_ids=tokens_BL[:, :-1], use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BLD[chosen])
    total = torch.nn.functional.cross_entropy(logits_NV, targets_BL[chosen], reduction="sum")
    return total, int(chosen.sum())


def optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    outer = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "layers." in name)]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def train(model: Qwen3ForCausalLM, streams: Sequence[Stream], steps: int, peak_rate: float) -> None:
    """Train on gold dialogues with warm-up and cosine decay; the loss is the mean over all action tokens of a step."""
    parts = optimizers(model, peak_rate)
    model.train()
    started = time.time()
    for step in range(steps):
        rate = peak_rate * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * step / steps)))
        for optimizer in parts:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        batches = [stream.take_step() for stream in streams]
        all_tokens = sum(t != NO_TARGET for batch in batches for example in batch for t in example.targets)
        report = []
        for stream, batch in zip(streams, batches, strict=True):
            total, count = nll_sum(model, batch)
            (total / all_tokens).backward()
            report.append(f"{stream.label} {total.item() / count:.3f}")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in parts:
            optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1:5d}  {time.time() - started:5.0f} s  {'  '.join(report)}", flush=True)
    model.eval()


@torch.no_grad()
def sample_turns(
    model: Qwen3ForCausalLM, rows: Sequence[list[int]], most_tokens: int, generator: torch.Generator
) -> list[list[int]]:
    """One turn for every row at temperature 1, up to and with the end token (cut at `most_tokens`)."""
    turns: list[list[int]] = [[] for _ in rows]
    for _ in range(most_tokens):
        active = [i for i, turn in enumerate(turns) if not turn or turn[-1] != END_ID]
        if not active:
            break
        so_far = [rows[i] + turns[i] for i in active]
        last = torch.tensor([len(row) - 1 for row in so_far])
        hidden_BLD = model.model(input_ids=padded(so_far, PAD_ID)).last_hidden_state
        logits_BV = model.lm_head(hidden_BLD[torch.arange(len(active)), last])
        drawn = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=generator)
        for i, token in zip(active, drawn.flatten().tolist(), strict=True):
            turns[i].append(token)
    return turns


def solved_share(
    model: Qwen3ForCausalLM, renderer: ChatRenderer, source: Source, placement: str | None, episodes: int
) -> float:
    """Share of tasks of another seed that are solved at temperature 1, one episode each."""
    environment = source.environment(measured=True, rows=episodes)
    generator = torch.Generator().manual_seed(derive_seed(MEASURE_SEED, f"tiny.sampling.{placement}"))
    tasks = [environment.task(row) for row in range(episodes)]
    running = {row: (environment.start(t), opening_ids(renderer, t, placement)) for row, t in enumerate(tasks)}
    solved = 0.0
    while running:
        order = list(running)
        turns = sample_turns(model, [running[row][1] for row in order], source.max_turn_tokens, generator)
        for row, turn in zip(order, turns, strict=True):
            episode, ids = running.pop(row)
            reply = episode.reply(renderer.decode(turn))
            if reply.done:
                solved += reply.reward or 0.0
            elif turn[-1] == END_ID:
                running[row] = (episode, renderer.extend(ids + turn, reply.messages).tolist())
    return solved / episodes


@torch.no_grad()
def gold_token_probability(
    model: Qwen3ForCausalLM, renderer: ChatRenderer, source: Source, placement: str | None, episodes: int
) -> float:
    """Mean probability of the gold answer tokens (end tokens apart) after a gold history."""
    environment = source.environment(measured=True, rows=episodes)
    tasks = [environment.task(row) for row in range(episodes)]
    examples = [gold_example(renderer, environment, task, placement) for task in tasks]
    tokens_BL = padded([e.token_ids for e in examples], PAD_ID)
    targets_BL = padded([e.targets for e in examples], NO_TARGET)[:, 1:]
    chosen = (targets_BL != NO_TARGET) & (targets_BL != END_ID)
    probability_BLV = model(input_ids=tokens_BL).logits[:, :-1].softmax(-1)
    return float(probability_BLV.gather(-1, tokens_BL[:, 1:, None])[..., 0][chosen].mean())


def measured_rows(model: Qwen3ForCausalLM, renderer: ChatRenderer, mix: Sequence[Source], episodes: int) -> list[str]:
    """The lines of the model card's table."""
    lines = []
    for source in mix:
        for placement in PLACEMENTS:
            solved = solved_share(model, renderer, source, placement, episodes)
            digits = gold_token_probability(model, renderer, source, placement, episodes // 2)
            lines.append(f"| {source.label} | {placement or 'none'} | {solved:.3f} | {digits:.3f} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Train, measure, write."""
    arguments = parsed_arguments()
    torch.set_num_threads(1)
    started = time.time()
    tokenizer = make_tokenizer()
    renderer = ChatRenderer(tokenizer)
    model = make_model(tokenizer)
    variant = VARIANTS[arguments.variant]
    mix = sources(variant)
    for phase, (steps, peak_rate) in enumerate(PHASES):
        streams: list[Stream] = [ExampleStream(source, renderer, phase) for source in mix]
        if phase == CHECKING_PHASE:
            streams += [CheckedStream(source, renderer, model, mark=variant.mark) for source in mix]
        train(model, streams, steps, peak_rate)
        # The folder holds bfloat16: measure what users get. Each phase starts from what could be a saved folder.
        model = model.to(torch.bfloat16).to(torch.float32)
    table = measured_rows(model, renderer, mix, arguments.episodes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    card = model_card(model, mix, arguments, table)
    (arguments.out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"{arguments.out} written after {time.time() - started:.0f} s")


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the bundled tiny model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="tiny")
    parser.add_argument("--episodes", type=int, default=512, help="measured for each line of the table")
    return parser.parse_args()


def model_card(
    model: Qwen3ForCausalLM, mix: Sequence[Source], arguments: argparse.Namespace, table: Sequence[str]
) -> str:
    """The text of MODEL_CARD.md."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shape = f"{model.config.num_hidden_layers} layers of width {model.config.hidden_size}"
    folder = arguments.variant.replace("-", "_")
    command = (
        f"python scripts/make_tiny_model.py --variant {arguments.variant} --out lecritique/models/{folder} "
        f"--episodes {arguments.episodes}"
    )
    mark = "end" if VARIANTS[arguments.variant].mark == END_ID else "pad"
    phases = ", then ".join(f"{steps} (peak learning rate {rate})" for steps, rate in PHASES)
    kinds = "\n".join(
        f"- {s.label}: {s.per_step} gold and {s.checked_per_step} checked examples a step of the two phases,\n"
        f'  `task.type = "{s.task_type}"`,\n'
        f"  trained on `{dict(s.options)}`,\n  measured on `{dict(s.measured_options)}`"
        for s in mix
    )
    lines = "\n".join(table)
    return f"""# {arguments.variant}

A base policy of the demo recipes: a Qwen3 of {parameters:,} parameters ({shape}) in bfloat16, with a byte-level
tokenizer (256 bytes and {len(SPECIAL_TOKENS)} special tokens). Of its {CONTEXT_LENGTH:,} positions training used
fewer than 160. It knows nothing but the tasks below and is of no use outside of them.

Licence: Apache-2.0. All training data were generated by this project's environments with data seed {TRAIN_SEED},
which no recipe uses; three-term sums are so few that most questions occur in both all the same.

Made on one CPU thread by

    {command}

## Training

{phases} steps on gold dialogues, with a loss on the policy's tokens only; Muon for the
matrices of the layers, AdamW for the rest. A half (two thirds for multi turn) of the examples have the reference as
a system message in front (`system_prefix`) or at the end of the user message (`user_suffix`), so that a critic
copied from this model can use a reference from the start.

The second phase adds checked dialogues: the model's own samples read beside the reference, with the gold token as
target up to the first token that departs from the reference and the {mark} token after it. A chat model has
learnt from its pretraining to compare a text with a reference; a model of this size has to be taught. Without these
examples a privileged critic learns the comparison itself, many times more slowly (docs/log.md).

{kinds}

## Measured

Temperature 1, {arguments.episodes} tasks of another data seed for each line, one episode each.
"Gold token" is the mean probability of the gold answer's tokens after a gold history. Beside a reference the model may
say the {mark} token where nothing has departed: that episode counts as unsolved.

| task | reference placed | solved | gold token |
|---|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
