"""TRL's GRPO or RLOO on the workload; runs in the environment that has TRL 1.16.

python trl_groups.py MODEL_FOLDER grpo|rloo
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import workload
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl_steps import STEPS, Measured


def rewards(completions: list[str], **_: Any) -> list[float]:
    """One for each completion."""
    assert all(len(text) >= workload.NEW_TOKENS // 4 for text in completions), "a completion ended early"
    return [workload.reward(text) for text in completions]


def main() -> None:
    """Train until the driver has had enough."""
    folder, method = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    config, trainer = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[method]
    model, tokenizer = workload.load(folder)
    with tempfile.TemporaryDirectory() as out:
        trainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            callbacks=[Measured()],
            train_dataset=Dataset.from_list([{"prompt": workload.prompt(row)} for row in range(2000)]),
            args=config(
                output_dir=out,
                per_device_train_batch_size=workload.ROWS,
                num_generations=workload.GROUP,
                max_completion_length=workload.NEW_TOKENS,
                max_steps=STEPS,
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
        ).train()


if __name__ == "__main__":
    main()
