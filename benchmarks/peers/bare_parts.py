"""What a step cannot do without, by Hugging Face alone: generation, forward pass, training step. One part a process.

python bare_parts.py MODEL_FOLDER generate|forward|train|train-critic
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import workload
from meter import Meter


def main() -> None:
    """Run one part again and again."""
    folder, part = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    step = {"generate": generate, "forward": forward, "train": train, "train-critic": train_critic}[part](folder)
    meter = Meter(warmup_steps=5)
    while True:
        step()
        meter.step_done()


def generate(folder: Path) -> Callable[[], object]:
    """32 new tokens for each of the 32 rows, sampled."""
    model, tokenizer = workload.load(folder)
    prompts = [workload.prompt(row) for row in range(workload.PROMPTS) for _ in range(workload.GROUP)]
    ids_BL = torch.tensor(tokenizer(prompts, add_special_tokens=False)["input_ids"])
    mask_BL = torch.ones_like(ids_BL)

    def step() -> None:
        out = model.generate(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            do_sample=True,
            top_k=0,
            max_new_tokens=workload.NEW_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
        assert out.shape[1] == workload.PROMPT_CHARACTERS + workload.NEW_TOKENS

    return step


def forward(folder: Path) -> Callable[[], object]:
    """Log-probs of the sampled tokens, without gradient."""
    model, ids_BL = workload.load(folder)[0], sequences()

    @torch.no_grad()
    def step() -> None:
        logprobs(model, ids_BL)

    return step


def train(folder: Path) -> Callable[[], object]:
    """Forward, backward and AdamW of a policy gradient step."""
    model, ids_BL = workload.load(folder)[0], sequences()
    optimizer = torch.optim.AdamW(model.parameters(), lr=workload.LEARNING_RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-logprobs(model, ids_BL).mean()).backward()
        optimizer.step()

    return step


def train_critic(folder: Path) -> Callable[[], object]:
    """Forward, backward and AdamW of the decoder with one output for each token."""
    model, ids_BL = workload.load(folder)[0].model, sequences()
    head = torch.nn.Linear(model.config.hidden_size, 1)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=workload.LEARNING_RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        states_BLH = model(input_ids=ids_BL, use_cache=False).last_hidden_state
        head(states_BLH[:, workload.PROMPT_CHARACTERS - 1 : -1]).square().mean().backward()
        optimizer.step()

    return step


def sequences() -> torch.Tensor:
    """Random ids of the sizes of a batch, [32, 38]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(64, 90, (workload.ROWS, workload.PROMPT_CHARACTERS + workload.NEW_TOKENS), generator=generator)


def logprobs(model: torch.nn.Module, ids_BL: torch.Tensor) -> torch.Tensor:
    """Of the response's tokens, [B, 32]."""
    first = workload.PROMPT_CHARACTERS
    logits_BLV = model(input_ids=ids_BL, use_cache=False, logits_to_keep=workload.NEW_TOKENS + 1).logits[:, :-1]
    return torch.log_softmax(logits_BLV, dim=-1).gather(-1, ids_BL[:, first:, None])[..., 0]


if __name__ == "__main__":
    main()
