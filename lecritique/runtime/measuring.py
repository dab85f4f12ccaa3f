"""Constants of this machine for `lecritique plan --measure`, by micro-benchmarks on one thread.

Each is the difference of two timings of a small reference decoder, so that what they share cancels: one and four
layers, few and many tokens, short and long caches, few and many rows. CPU seconds of the calling thread; medians, and
not the least, because a run meets the machine as it usually is.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from lecritique.config.cluster import Cluster
from lecritique.config.estimators import OptimizerConfig
from lecritique.config.load import compose, load_recipe
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.rollout import GenerateRequest, Sampling
from lecritique.models.loading import BUNDLED
from lecritique.models.optimizer import Optimizer
from lecritique.models.scoring import TokenRow, action_logprobs, in_micro_batches, logprobs
from lecritique.planning.cpu import CpuConstants, CpuPlanner, PassCost
from lecritique.planning.memory import activation_numbers
from lecritique.planning.shapes import ModelShape, shape_from, shape_of
from lecritique.rollout.sampler import Sampler
from lecritique.runtime.build import Base, build, load_base
from lecritique.runtime.synchronous import train_step

# The reference decoder, of the size of a model that a CPU trains: its arrays do not fit a core's cache.
_SIZES = {
    "model_type": "qwen3", "hidden_size": 80, "intermediate_size": 208, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 20, "vocab_size": 128, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
_FEW_LAYERS, _MANY_LAYERS = 1, 4
_ROW_TOKENS, _MANY_ROWS = 40, 128
_ROUNDS, _REPEATS = 3, 3
_NUMBERS = ("flops", "row", "cached", "parameter", "rollout")
# What runs around the models is timed with one that has next to nothing to do.
_EMPTY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "num_attention_heads": 2}
_EMPTY_STEPS, _EMPTY_ROWS = 5, 64
_PROMPTS = 64


def measured_constants(*, rounds: int = _ROUNDS) -> CpuConstants:
    """Time this machine: the median of some rounds, each constant by itself. About ten seconds on an idle one."""
    with _one_thread():
        few, many = _Reference(_FEW_LAYERS), _Reference(_MANY_LAYERS)
        typical = _medians([_model_constants(few, many) for _ in range(rounds)])
        return replace(typical, rollout=_rollout_seconds(typical))


def _model_constants(few: _Reference, many: _Reference) -> CpuConstants:
    """All that has to do with models."""
    flops = _matmul_flops()
    decode, row, cached = _decode_costs(few, many, flops=flops)
    return CpuConstants(
        flops=flops,
        forward=_pass_cost(_Reference.forward, few, many, flops=flops, passes=1),
        train=_pass_cost(_Reference.train, few, many, flops=flops, passes=3),
        decode=decode,
        row=row,
        cached=cached,
        parameter=_parameter_seconds(),
        rollout=0.0,
    )


def _medians(found: Sequence[CpuConstants]) -> CpuConstants:
    def cost(name: str) -> PassCost:
        parts = [getattr(each, name) for each in found]
        return PassCost(**{part: median(getattr(each, part) for each in parts) for part in ("call", "layer", "number")})

    numbers = {name: median(getattr(each, name) for each in found) for name in _NUMBERS}
    return CpuConstants(**numbers, forward=cost("forward"), train=cost("train"), decode=cost("decode"))


def mean_prompt_tokens(base: Base) -> int:
    """Of the rows that a run begins with, template included."""
    rows = base.data.rows[:_PROMPTS]
    prompts = (base.renderer.render_prompt(base.environment.task(row).messages) for row in rows)
    return max(1, round(mean(len(prompt) for prompt in prompts)))


class _Reference:
    """A decoder with random weights, and what is timed of it."""

    def __init__(self, layers: int) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        sizes = {**_SIZES, "num_hidden_layers": layers}
        self.model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes)).eval()
        self.shape: ModelShape = shape_from(sizes, name="reference", source="here")

    def forward(self, rows: list[TokenRow]) -> None:
        """Log-probs of every token but the first."""
        logprobs(self.model, rows, temperature=1.0, max_tokens=1 << 20, share_prefixes=False)

    def train(self, rows: list[TokenRow]) -> None:
        """Forward and backward."""
        for batch in in_micro_batches(self.model, rows, max_tokens=1 << 20):
            torch.autograd.backward(action_logprobs(self.model, batch, temperature=1.0).mean())
        self.model.zero_grad(set_to_none=True)

    def flops(self, rows: list[TokenRow]) -> float:
        """Of one forward pass."""
        shape, tokens = self.shape, sum(len(row.token_ids) for row in rows)
        attention = 4 * shape.heads * shape.head_width * shape.attended_in_all_layers(len(rows[0].token_ids) / 2)
        return tokens * (2 * (shape.trunk_parameters + shape.embedding_parameters) + attention)

    def numbers(self, rows: list[TokenRow]) -> float:
        """Of its activations and logits."""
        tokens = sum(len(row.token_ids) for row in rows)
        return tokens * (activation_numbers(self.shape) * self.shape.layers + self.shape.vocabulary)


def _pass_cost(
    function: Callable[[_Reference, list[TokenRow]], None],
    few: _Reference,
    many: _Reference,
    *,
    flops: float,
    passes: int,
) -> PassCost:
    one, batch = _token_rows(1, 2), _token_rows(_MANY_ROWS, _ROW_TOKENS)
    short_few, short_many = (typical_seconds(lambda m=m: function(m, one)) for m in (few, many))
    layer = (short_many - short_few) / (many.shape.layers - few.shape.layers)
    call = short_few - few.shape.layers * layer
    long = typical_seconds(lambda: function(many, batch))
    rest = long - short_many - passes * many.flops(batch) / flops
    return PassCost(call=max(0.0, call), layer=layer, number=max(0.0, rest) / many.numbers(batch))


def _decode_costs(few: _Reference, many: _Reference, *, flops: float) -> tuple[PassCost, float, float]:
    """Of a step, of a row in it, of a cached number that it reads."""
    one_few, one_many = (_decode_seconds(each, rows=1, context=8) for each in (few, many))
    layer = (one_many - one_few) / (many.shape.layers - few.shape.layers)
    row_few, row_many = (
        (_decode_seconds(each, rows=_MANY_ROWS, context=8) - one) / (_MANY_ROWS - 1)
        for each, one in ((few, one_few), (many, one_many))
    )
    tokens = _token_rows(1, 1)
    added = (row_many - row_few) - (many.flops(tokens) - few.flops(tokens)) / flops
    number = max(0.0, added / (many.numbers(tokens) - few.numbers(tokens)))
    row = row_few - few.flops(tokens) / flops - number * few.numbers(tokens)
    read = (_decode_seconds(many, rows=_MANY_ROWS, context=264) - _decode_seconds(many, rows=_MANY_ROWS, context=8)) / (
        _MANY_ROWS * many.shape.cache_numbers(256)
    )
    return PassCost(call=one_few - few.shape.layers * layer, layer=layer, number=number), max(0.0, row), max(0.0, read)


def _decode_seconds(reference: _Reference, *, rows: int, context: int, steps: int = 16) -> float:
    """A step of the decode loop, from two numbers of steps."""

    def decode(tokens: int) -> None:
        sampler = Sampler(reference.model, max_rows=rows, chunk_tokens=tokens, prefill_tokens=1 << 20)
        for index in range(rows):
            request = GenerateRequest(
                request_id=str(index),
                sequence_id=RolloutId(group=GroupId(row=index, attempt=0), member=0),
                token_ids=np.arange(context) % _SIZES["vocab_size"],
                max_new_tokens=tokens,
                stop_ids=frozenset(),
                sampling=Sampling(),
                seed=index,
            )
            sampler.add(request)
        while sampler.busy:
            sampler.chunk()

    return (typical_seconds(lambda: decode(steps + 1)) - typical_seconds(lambda: decode(1))) / steps


def _rollout_seconds(constants: CpuConstants) -> float:
    """What the plan of a run with an empty model leaves unexplained of its steps, a rollout."""
    with tempfile.TemporaryDirectory() as folder:
        name = _empty_model(Path(folder))
        words = [
            f"model.name={json.dumps(name)}", "task.rows=64", f"rollout.batch_size={_EMPTY_ROWS}",
            "sampling.max_turn_tokens=2", 'runtime.device="cpu"',
        ]  # fmt: skip
        parts = build(load_base(compose(load_recipe("demo"), arm="value", overrides=words)))
        cluster = Cluster(prompt_tokens=20, response_tokens=2, spread=0.0)
        plan = CpuPlanner(config=parts.config, shape=shape_of(name), cluster=cluster, constants=constants)
        steps = iter(range(_EMPTY_STEPS + 1))
        try:
            taken = typical_seconds(lambda: train_step(parts, next(steps)), repeats=_EMPTY_STEPS)
        finally:
            parts.engine.close()
    return max(0.0, taken - sum(plan.seconds().values())) / _EMPTY_ROWS


def _empty_model(folder: Path) -> str:
    """A saved model with the bundled one's tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    bundled = Path(BUNDLED["tiny"])
    for file in bundled.glob("*token*"):
        shutil.copy(file, folder)
    shutil.copy(bundled / "chat_template.jinja", folder)
    sizes = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
    sizes |= {**_EMPTY, "layer_types": ["full_attention"], "dtype": "float32"}
    Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(folder)
    return str(folder)


def _matmul_flops() -> float:
    rows, width = 1024, 256
    left, right = torch.randn(rows, width), torch.randn(width, width)
    return 2 * rows * width * width / typical_seconds(lambda: torch.nn.functional.linear(left, right))


def _parameter_seconds() -> float:
    """Of clipping, an AdamW step and a copy for publication."""
    count, width = 16, 256
    weights = [torch.nn.Parameter(torch.randn(width, width)) for _ in range(count)]
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=1e-6))

    def step() -> None:
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step("reference")
        for weight in weights:
            weight.detach().clone()

    return typical_seconds(step) / (count * width * width)


def _token_rows(rows: int, tokens: int) -> list[TokenRow]:
    ids = np.random.default_rng(0).integers(0, _SIZES["vocab_size"], (rows, tokens))
    return [TokenRow(token_ids=row, mask=np.arange(tokens) > 0) for row in ids]


def typical_seconds(function: Callable[[], object], repeats: int = _REPEATS) -> float:
    """The median CPU seconds of some repetitions, after one that is not counted."""
    function()
    found = []
    for _ in range(repeats):
        started = time.thread_time()
        function()
        found.append(time.thread_time() - started)
    return median(found)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
