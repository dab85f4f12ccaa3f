"""Make a bundled tiny model: tokenizer, weights and model card, all from fixed seeds.

    python scripts/make_tiny_model.py --out lecritique/models/tiny
    python scripts/make_tiny_model.py --variant tiny-multi-turn --out lecritique/models/tiny_multi_turn
    python scripts/make_tiny_model.py --variant tiny-knights --out lecritique/models/tiny_knights

Each phase starts from what could be a saved folder, so `--start FOLDER --first-phase N` goes on from one that the
phases before made and ends at the same bits.

Each is the base policy of a demo. It solves part of its tasks and reads a reference placed in its context the way a
privileged critic sees it, so that a critic copied from it can use one. One thread on a CPU, some minutes; the first
two need the extra reasoning-gym. The parts are in scripts/tiny_model.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tiny_model.card import model_card
from tiny_model.examples import CheckedStream, ExampleStream, Stream
from tiny_model.measuring import measured_rows
from tiny_model.mix import CHECKING_PHASE, VARIANTS, Variant
from tiny_model.shape import make_model, make_tokenizer
from tiny_model.training import train
from transformers import Qwen3ForCausalLM

from lecritique.models.chat import ChatRenderer


def main() -> None:
    """Train, measure, write."""
    arguments = parsed_arguments()
    torch.set_num_threads(1)
    started = time.time()
    tokenizer = make_tokenizer()
    renderer = ChatRenderer(tokenizer)
    model = make_model(tokenizer)
    if arguments.start is not None:
        model = Qwen3ForCausalLM.from_pretrained(arguments.start, dtype=torch.float32)
    variant = VARIANTS[arguments.variant]
    for phase, (steps, peak_rate) in list(enumerate(variant.phases))[arguments.first_phase :]:
        train(model, streams_of(variant, renderer, model, phase), steps, peak_rate, variant.padded_together)
        # The folder holds bfloat16: measure what users get. Each phase starts from what could be a saved folder.
        model = model.to(torch.bfloat16).to(torch.float32)
    table = measured_rows(model, renderer, variant.sources, arguments.episodes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    card = model_card(model, arguments.variant, variant, arguments.episodes, table)
    (arguments.out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"{arguments.out} written after {time.time() - started:.0f} s")


def streams_of(variant: Variant, renderer: ChatRenderer, model: Qwen3ForCausalLM, phase: int) -> list[Stream]:
    """What a phase trains on: gold dialogues, from the second on the model's own, and a teacher's where it has some."""
    streams: list[Stream] = [ExampleStream(source, renderer, phase) for source in variant.sources]
    if phase >= CHECKING_PHASE:
        streams += [CheckedStream(source, renderer, model, phase, mark=variant.mark) for source in variant.sources]
    taught = [source for source in variant.sources if source.teachings and source.taught_per_step[phase]]
    return streams + [CheckedStream(source, renderer, model, phase, mark=None) for source in taught]


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a bundled tiny model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="tiny")
    parser.add_argument("--episodes", type=int, default=512, help="measured for each line of the table")
    parser.add_argument("--start", type=Path, help="folder that the phases before --first-phase made")
    parser.add_argument("--first-phase", type=int, default=0, help="counted from 0; needs --start unless it is 0")
    arguments = parser.parse_args()
    if (arguments.start is None) != (arguments.first_phase == 0):
        parser.error("--start and --first-phase go together")
    return arguments


if __name__ == "__main__":
    main()
