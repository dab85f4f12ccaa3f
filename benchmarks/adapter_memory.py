"""Peak memory of a run with and without adapters, beside what `--dry-run` says of it.

    python benchmarks/adapter_memory.py

A random model of 34 million parameters plays two steps of Sudoku with a critic, in a process of its own for each
choice. `peak` is the largest resident size less what the process had before the model was loaded, `told` the sum over
roles and weight store (`lecritique/planning/memory.py`), both in MiB; `seconds` is CPU time of the second step.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from lecritique.config.load import compose, load_recipe
from lecritique.models.loading import TINY_FOLDER

POLICY, COPY = "model.adapter.type={}", "critic.backbone.type={}"
CHOICES = (("none", "copy"), ("none", "lora"), ("lora", "copy"), ("lora", "lora"), ("lora", "shared"))
SETTINGS = (
    "run.steps=2", "task.rows=16", "rollout.batch_size=8", "critic.replay.refill_size=8", "critic.warmup_updates=0",
    "sampling.max_total_tokens=128", "runtime.micro_batch_tokens=512",
)  # fmt: skip


def main() -> None:
    """Print one line per choice."""
    print(f"{'policy':>8}{'critic':>8}{'peak':>8}{'told':>8}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        for adapter, backbone in CHOICES:
            words = [sys.executable, __file__, folder, POLICY.format(adapter), COPY.format(backbone)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{adapter:>8}{backbone:>8}{found['peak']:8.0f}{found['told']:8.0f}{found['seconds']:9.2f}", flush=True
            )


def write_model(folder: Path) -> None:
    """A random Qwen3 with the bundled model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=512, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure(folder: str, *choice: str) -> None:
    """Two steps in this process; JSON on the last line."""
    from lecritique.planning.memory import role_memory, stored_weights
    from lecritique.planning.shapes import shape_of
    from lecritique.runtime.build import build, load_base
    from lecritique.runtime.synchronous import train_step

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    base = load_base(compose(load_recipe("demo"), arm="value", overrides=[*SETTINGS, f"model.name={folder}", *choice]))
    parts = build(base)
    train_step(parts, 0)
    started = time.process_time()
    train_step(parts, 1)
    seconds = time.process_time() - started
    shape = shape_of(folder)
    told = sum(role.total for role in role_memory(base.config, shape)) + stored_weights(base.config, shape)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"peak": peak / 1024, "told": told / 2**20, "seconds": seconds}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(*sys.argv[1:])
    else:
        main()
