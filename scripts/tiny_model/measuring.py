"""What a finished model can do: the table of its card.

Letters: B rows, L tokens of the longest row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Qwen3ForCausalLM

from lecritique.core.seeds import derive_seed
from lecritique.models.chat import ChatRenderer

from .examples import NO_TARGET, gold_example, opening_ids, padded
from .mix import MEASURE_SEED, AnyReading, Source
from .shape import END_ID, PAD_ID


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
    model: Qwen3ForCausalLM, renderer: ChatRenderer, source: Source, reading: AnyReading | None, episodes: int
) -> float:
    """Share of tasks of another seed that are solved at temperature 1, one episode each."""
    environment = source.environment(measured=True, rows=episodes)
    generator = torch.Generator().manual_seed(
        derive_seed(MEASURE_SEED, f"tiny.sampling.{reading.label if reading else None}")
    )
    tasks = [environment.task(row) for row in range(episodes)]
    running = {row: (environment.start(t), opening_ids(renderer, t, reading)) for row, t in enumerate(tasks)}
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
    model: Qwen3ForCausalLM, renderer: ChatRenderer, source: Source, reading: AnyReading | None, episodes: int
) -> float:
    """Mean probability of the gold answer tokens (end tokens apart) after a gold history."""
    environment = source.environment(measured=True, rows=episodes)
    tasks = [environment.task(row) for row in range(episodes)]
    examples = [gold_example(renderer, environment, task, reading) for task in tasks]
    tokens_BL = padded([e.token_ids for e in examples], PAD_ID)
    targets_BL = padded([e.targets for e in examples], NO_TARGET)[:, 1:]
    chosen = (targets_BL != NO_TARGET) & (targets_BL != END_ID)
    probability_BLV = model(input_ids=tokens_BL).logits[:, :-1].softmax(-1)
    return float(probability_BLV.gather(-1, tokens_BL[:, 1:, None])[..., 0][chosen].mean())


def measured_rows(model: Qwen3ForCausalLM, renderer: ChatRenderer, mix: Sequence[Source], episodes: int) -> list[str]:
    """The lines of the model card's table."""
    lines = []
    for source in mix:
        for reading in (None, *source.informed, *source.teachings):
            solved = solved_share(model, renderer, source, reading, episodes)
            digits = gold_token_probability(model, renderer, source, reading, episodes // 2)
            lines.append(f"| {source.label} | {reading.label if reading else 'none'} | {solved:.3f} | {digits:.3f} |")
            print(lines[-1], flush=True)
    return lines
