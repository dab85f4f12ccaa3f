"""Why OPSD does not raise the reward of the tiny Knights-and-Knaves policy: which tokens it distils on.

    PYTHONPATH=. python benchmarks/opsd_departures.py all|before|gold|look

An update loop of its own (whole logits, plain AdamW), beside the package's: the frozen base policy, told the answer,
is the teacher, forward KL on the student's samples. `all` takes every token, `before` those up to the first that
departs from the gold answer, `gold` is supervised learning of the gold answer. Prints the share of 300 held-out
puzzles that one sample each solves, at the recipe's temperature. `look` trains nothing: how probable the gold token
is to teacher and student, up to and behind the first departure.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch

from lecritique.config.load import compose, load_recipe
from lecritique.config.schema import ReferenceContext
from lecritique.core.rollout import Rollout
from lecritique.core.task import Task
from lecritique.critic.teacher import teacher_prompt
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.synchronous import collect_batch
from lecritique.tasks.registry import load_environment

MODES = ("all", "before", "gold", "look")
STEPS, MINIBATCHES, RATE = 60, 4, 1e-4


def main() -> None:
    """Distil and print how many puzzles are solved on the way."""
    mode = sys.argv[1] if len(sys.argv) > 1 else "all"
    if mode not in MODES:
        sys.exit(f"expected one of {', '.join(MODES)}, got {mode!r}")
    parts = build(load_base(compose(load_recipe("knights-laptop"), arm="opsd_frozen")))
    student = parts.learner.policy.model
    teacher = copy.deepcopy(student).requires_grad_(False)
    if mode == "look":
        look(parts, student)
        return
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE, weight_decay=0.01)
    print(f"{mode}: step 0 solved {solved(parts, student):.3f}")
    for step in range(1, STEPS + 1):
        rollouts = [rollout for group in collect_batch(parts).batch for rollout in group if rollout.turns]
        size = -(-len(rollouts) // MINIBATCHES)
        for start in range(0, len(rollouts), size):
            loss = distillation(parts, student, teacher, rollouts[start : start + size], mode)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
        if step % 10 == 0:
            print(f"{mode}: step {step} loss {loss.item():.3f} solved {solved(parts, student):.3f}", flush=True)


def distillation(parts: Parts, student: Any, teacher: Any, rollouts: Sequence[Rollout], mode: str) -> torch.Tensor:
    """Mean over responses of the mean loss of their tokens, nats."""
    plain = [rollout.turns[0].given_ids.tolist() for rollout in rollouts]
    gold = [gold_ids(parts, rollout.task) for rollout in rollouts]
    if mode == "gold":
        own = log_distributions(parts, student, plain, gold)
        losses = [-of[torch.arange(len(ids)), torch.tensor(ids)].mean() for of, ids in zip(own, gold, strict=True)]
        return torch.stack(losses).mean()
    sampled = [rollout.turns[0].completion.token_ids.tolist() for rollout in rollouts]
    told = [told_prompt(parts, rollout.task) for rollout in rollouts]
    own = log_distributions(parts, student, plain, sampled)
    losses = []
    for q, p, ids, right in zip(log_distributions(parts, teacher, told, sampled), own, sampled, gold, strict=True):
        divergence = (q.exp() * (q - p)).sum(-1)
        upto = first_departure(ids, right) + 1 if mode == "before" else len(ids)
        losses.append(divergence[:upto].sum() / len(ids))
    return torch.stack(losses).mean()


@torch.no_grad()
def look(parts: Parts, model: Any, batches: int = 2) -> None:
    """Print mean probabilities of the gold token, where the gold answer has one."""
    found: dict[str, list[tuple[float, float]]] = {"up to the first departure": [], "behind it": []}
    for _ in range(batches):
        rollouts = [rollout for group in collect_batch(parts).batch for rollout in group if rollout.turns]
        sampled = [rollout.turns[0].completion.token_ids.tolist() for rollout in rollouts]
        own = log_distributions(parts, model, [r.turns[0].given_ids.tolist() for r in rollouts], sampled)
        told = log_distributions(parts, model, [told_prompt(parts, r.task) for r in rollouts], sampled)
        for rollout, ids, p, q in zip(rollouts, sampled, own, told, strict=True):
            right = gold_ids(parts, rollout.task)
            departure = first_departure(ids, right)
            for place in range(min(len(ids), len(right))):
                where = "behind it" if place > departure else "up to the first departure"
                found[where].append((q[place, right[place]].exp().item(), p[place, right[place]].exp().item()))
    for where, pairs in found.items():
        teacher, student = (sum(column) / len(column) for column in zip(*pairs, strict=True))
        print(f"{where}: {len(pairs)} tokens, gold token {teacher:.3f} to the teacher, {student:.3f} to the student")


def first_departure(ids: Sequence[int], gold: Sequence[int]) -> int:
    """Index of the first token that is not the gold answer's, or of the last one."""
    return next((i for i, token in enumerate(ids) if i >= len(gold) or token != gold[i]), len(ids) - 1)


def told_prompt(parts: Parts, task: Task) -> list[int]:
    """What the teacher reads in place of the policy's prompt."""
    return teacher_prompt(task, ReferenceContext(content="answer"), parts.renderer).tolist()


def gold_ids(parts: Parts, task: Task) -> list[int]:
    """The gold answer with its end."""
    text = parts.environment.gold(task, list(task.messages))
    return [*parts.renderer.encode_text(text), min(parts.renderer.stop_ids)]


def log_distributions(
    parts: Parts, model: Any, prompts: Sequence[list[int]], responses: Sequence[list[int]]
) -> list[torch.Tensor]:
    """Log-probs of the next token at each token of the responses, [T, V] each."""
    rows = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    logits = model(right_padded(rows)).logits / parts.config.sampling.temperature
    return [
        logits[row, len(prompt) - 1 : len(prompt) + len(response) - 1].log_softmax(-1)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]


def right_padded(rows: Sequence[list[int]]) -> torch.Tensor:
    """Rows in one tensor."""
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


@torch.no_grad()
def solved(parts: Parts, model: Any, puzzles: int = 300) -> float:
    """Share of held-out puzzles that one sample each solves."""
    options = {**parts.config.task.options, "split": "held_out"}
    environment = load_environment("knights_knaves", options, seed=0)
    tasks = [environment.task(row) for row in range(puzzles)]
    rows = [parts.renderer.render_prompt(task.messages).tolist() for task in tasks]
    answers: list[list[int]] = [[] for _ in tasks]
    generator = torch.Generator().manual_seed(0)
    for _ in range(parts.config.sampling.max_turn_tokens):
        open_rows = [i for i, answer in enumerate(answers) if not answer or answer[-1] not in parts.renderer.stop_ids]
        if not open_rows:
            break
        logits = model(right_padded([rows[i] + answers[i] for i in open_rows])).logits
        ends = torch.tensor([len(rows[i]) + len(answers[i]) - 1 for i in open_rows])
        last = logits[torch.arange(len(open_rows)), ends] / parts.config.sampling.temperature
        for i, token in zip(
            open_rows, torch.multinomial(last.softmax(-1), 1, generator=generator).tolist(), strict=True
        ):
            answers[i] += token
    rewards = [
        environment.start(task).reply(parts.renderer.decode(answer)).reward or 0.0
        for task, answer in zip(tasks, answers, strict=True)
    ]
    return sum(rewards) / len(rewards)


if __name__ == "__main__":
    main()
