"""TRL's PPO with a learned critic on the workload; runs in the environment that has TRL 1.12, the last with one.

    python trl_ppo.py MODEL_FOLDER as-is|without-gc

PPO calls the garbage collector in every step; `without-gc` leaves that call out. One epoch and one minibatch, as ours
has. Its reward model is the workload's rule, so that it costs nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import workload
from datasets import Dataset
from transformers import PrinterCallback, Qwen3ForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer
from trl_steps import STEPS, Measured


class LetterReward(torch.nn.Module):
    """The workload's reward in the form in which PPO asks a model for it."""

    base_model_prefix = "rule"

    def __init__(self, letter_ids: list[int]) -> None:
        super().__init__()
        self._letter_ids = torch.tensor(letter_ids)

    def rule(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Whether each token is a letter, in place of hidden states."""
        return SimpleNamespace(hidden_states=[torch.isin(input_ids, self._letter_ids)[..., None].float()])

    def score(self, letters_BL1: torch.Tensor) -> torch.Tensor:
        """The share of letters among the response's tokens, read at its last; the prompt is all letters."""
        return (letters_BL1.cumsum(dim=1) - workload.PROMPT_CHARACTERS) / workload.NEW_TOKENS


def main() -> None:
    """Train until the driver has had enough."""
    folder, form = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    if form == "without-gc":
        ppo_trainer.gc = SimpleNamespace(collect=lambda: 0)
    model, tokenizer = workload.load(folder)
    critic = Qwen3ForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    prompts = [tokenizer(workload.prompt(row), add_special_tokens=False)["input_ids"] for row in range(2000)]
    with tempfile.TemporaryDirectory() as out:
        trainer = PPOTrainer(
            args=PPOConfig(
                output_dir=out,
                per_device_train_batch_size=workload.ROWS,
                total_episodes=STEPS * workload.ROWS,
                num_ppo_epochs=1,
                num_mini_batches=1,
                local_rollout_forward_batch_size=workload.ROWS,
                num_sample_generations=0,
                response_length=workload.NEW_TOKENS,
                temperature=1.0,
                learning_rate=workload.LEARNING_RATE,
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
                logging_steps=STEPS,
            ),
            processing_class=tokenizer,
            model=model,
            ref_model=workload.load(folder)[0],
            reward_model=LetterReward(tokenizer(workload.LETTERS, add_special_tokens=False)["input_ids"]),
            value_model=critic,
            train_dataset=Dataset.from_dict({"input_ids": prompts}),
            eval_dataset=Dataset.from_dict({"input_ids": prompts[:32]}),
            callbacks=[Measured()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
