"""Where a step's time and memory go, and how they grow, on one thread; each part prints a table of its own.

    PYTHONPATH=. python benchmarks/fast_path.py [PART ...] [--json FILE]

Parts are shares, scoring, layouts, prefixes, growth, memory and peak.

Without names all but `peak`, which needs the extra smollm2 and a minute. Sizes are those of `benchmarks/peers/`
unless said. CPU seconds; run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))  # its files know each other by their bare names

import own
import workload
from meter import held_mib, peak_mib

from lecritique.config.losses import Bce
from lecritique.models.loading import TINY_FOLDER, load_causal_lm
from lecritique.models.packed_attention import read_packed
from lecritique.models.packing import micro_batches
from lecritique.models.scoring import (
    TokenRow,
    action_logprobs,
    action_value_outputs,
    in_micro_batches,
    logprobs,
    values,
)
from lecritique.models.value_model import ValueModel
from lecritique.runtime.build import Parts, build, load_base
from lecritique.runtime.synchronous import train_step

MAX_TOKENS, CPU_TOKENS = 16_384, 2_048  # what `runtime.micro_batch_tokens` is by default, and on CPUs
LENGTHS = ("log-normal", "geometric", "uniform", "two kinds", "equal", "one longer")
# Groups, members, shortest and longest prompt, mean response.
SIBLINGS = (
    (8, 4, 40, 99, 32), (8, 4, 60, 63, 32), (16, 8, 40, 99, 32), (32, 4, 40, 99, 20), (4, 8, 34, 89, 12),
    (2, 4, 1400, 1500, 500),
)  # fmt: skip
ARMS = ("mean", "leave_one_out", "value", "pvf", "tether", "evpo")


def main() -> None:
    """Run the parts that are asked for."""
    parts: dict[str, Callable[[Path], Any]] = {
        "shares": shares, "scoring": scoring, "layouts": layouts, "prefixes": prefixes, "growth": growth,
        "memory": memory, "peak": peak,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        workload.save_model(Path(folder), TINY_FOLDER)
        for name in asked.parts or [name for name in parts if name != "peak"]:
            found[name] = parts[name](Path(folder))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def shares(folder: Path) -> list[dict[str, float | str]]:
    """What each estimator costs over `mean`, and what its credit (fits included) is of a step."""
    found: list[dict[str, float | str]] = []
    print(f"\n{'arm':16}{'new tokens':>12}{'CPU s a step':>14}{'over mean':>12}{'credit ms':>12}{'of the step':>13}")
    for tokens, arms, steps in ((32, ARMS, 20), (128, ("mean", "tether", "evpo"), 8)):
        of_mean = 0.0
        for arm in arms:
            config = own.configured(folder, arm, [f"sampling.max_turn_tokens={tokens}"])
            credit, step = _credit_and_step(config, steps)
            of_mean = of_mean or step  # `mean` comes first
            print(f"{arm:16}{tokens:12}{step:14.3f}{step / of_mean:12.2f}{1e3 * credit:12.2f}{credit / step:13.2%}")
            found.append({"arm": arm, "new_tokens": tokens, "credit_seconds": credit, "step_seconds": step})
    return found


def _credit_and_step(config: Any, steps: int) -> tuple[float, float]:
    """Medians of the CPU seconds of crediting and of a whole step."""
    parts = build(load_base(config))
    crediting, credits_, totals = parts.learner.crediting, [], []
    inner = crediting.credit

    def credit(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        result = inner(*given, **named)
        credits_.append(time.process_time() - started)
        return result

    crediting.credit = credit  # type: ignore[method-assign]
    for step in range(steps):
        totals.append(_seconds(lambda step=step: train_step(parts, step)))
    parts.engine.close()
    return statistics.median(credits_[3:]), statistics.median(totals[3:])


def scoring(folder: Path, repeats: int = 15) -> dict[str, float]:
    """Values of a batch, as the evaluator makes them, against a bare forward pass of the same rows."""
    model = load_causal_lm(str(folder)).model
    critic = ValueModel.from_policy(model, Bce(), seed=0)
    rows = _rows([workload.PROMPT_CHARACTERS + workload.NEW_TOKENS] * workload.ROWS, workload.PROMPT_CHARACTERS)
    ids_BL = torch.tensor(np.stack([row.token_ids for row in rows]))

    @torch.no_grad()
    def bare() -> None:
        critic.backbone(input_ids=ids_BL, use_cache=False)

    ours, theirs = _alternating([lambda: values(critic, rows, max_tokens=MAX_TOKENS), bare], repeats)
    print(f"\nvalues of {len(rows)} rows: {1e3 * ours:.1f} ms, bare forward {1e3 * theirs:.1f} ms: {ours / theirs:.2f}")
    return {"values_seconds": ours, "forward_seconds": theirs}


def layouts(folder: Path, repeats: int = 5) -> list[dict[str, float | str]]:
    """Padding of batches and what a policy update's passes take: padded by length, and packed in passes for a CPU."""
    model = load_causal_lm(str(folder)).model
    packed = load_causal_lm(str(folder), packed=True).model
    print(f"\n{'rows x mean length':>20}{'lengths':>12}{'layout':>10}{'passes':>8}{'padding':>9}{'CPU s':>8}")
    found: list[dict[str, float | str]] = []
    sizes = [(32, 38, kind) for kind in LENGTHS] + [(128, 64, "log-normal"), (64, 256, "log-normal")]
    for count, mean, kind in sizes:
        lengths = drawn(kind, count, mean)
        rows = _rows(lengths, 6)
        cuts = {
            "padded": (model, micro_batches(lengths, max_tokens=MAX_TOKENS)),
            "packed": (packed, micro_batches(lengths, max_tokens=CPU_TOKENS, packed=True)),
        }
        seconds = _alternating(
            [lambda cut=cut, rows=rows: _update(cut[0], rows, cut[1]) for cut in cuts.values()], repeats
        )
        for (name, (_, split)), took in zip(cuts.items(), seconds, strict=True):
            read = sum(len(batch) * max(lengths[i] for i in batch) for batch in split)
            padding = 1 - sum(lengths) / read if name == "padded" else 0.0
            print(f"{f'{count} x {mean}':>20}{kind:>12}{name:>10}{len(split):8}{padding:9.1%}{took:8.3f}")
            found.append(
                {
                    "rows": count, "mean": mean, "lengths": kind, "layout": name,
                    "passes": len(split), "padding": padding, "seconds": took,
                }
            )  # fmt: skip
    return found


def _update(model: Any, rows: Sequence[TokenRow], split: list[list[int]]) -> None:
    model.zero_grad()
    for micro in in_micro_batches(model, rows, max_tokens=MAX_TOKENS, split=lambda lengths, **limits: split):
        torch.autograd.backward(-action_logprobs(model, micro, temperature=1.0).sum())


def prefixes(folder: Path, repeats: int = 9) -> list[dict[str, float | str]]:
    """Log-probs of siblings behind their shared prompts, in both layouts; padded reads more tokens than packed."""
    models = {
        name: (load_causal_lm(str(folder), packed=name == "packed").model, tokens)
        for name, tokens in (("padded", MAX_TOKENS), ("packed", CPU_TOKENS))
    }
    print(f"\n{'groups x members':>18}{'prompt':>14}{'response':>10}{'padding':>9}{'padded s':>10}{'packed s':>10}")
    found: list[dict[str, float | str]] = []
    for groups, members, shortest, longest, response in SIBLINGS:
        rows = _siblings(groups, members, shortest, longest, response)
        read = {name: _tokens_read(model, rows, most) for name, (model, most) in models.items()}
        padded, packed = _alternating(
            [
                lambda model=model, most=most, rows=rows: logprobs(model, rows, temperature=1.0, max_tokens=most)
                for model, most in models.values()
            ],
            repeats,
        )
        padding = 1 - read["packed"] / read["padded"]
        size, prompt = f"{groups} x {members}", f"{shortest} to {longest}"
        print(f"{size:>18}{prompt:>14}{response:10}{padding:9.1%}{padded:10.3f}{packed:10.3f}{packed / padded:6.2f}")
        found.append(
            {
                "groups": groups, "members": members, "prompt": prompt, "response": response,
                "padding": padding, "padded_seconds": padded, "packed_seconds": packed,
            }
        )  # fmt: skip
    return found


def _siblings(groups: int, members: int, shortest: int, longest: int, response: int) -> list[TokenRow]:
    """Prompts of `shortest` to `longest` tokens; responses with a geometric tail, of `response` tokens on average."""
    rng = np.random.default_rng(11)
    rows = []
    for _ in range(groups):
        prompt = rng.integers(64, 90, rng.integers(shortest, longest + 1))
        for length in np.clip(rng.geometric(1 / response, members), 1, 2048 - longest):
            ids = np.concatenate([prompt, rng.integers(64, 90, length)])
            rows.append(TokenRow(token_ids=ids, mask=np.arange(len(ids)) >= len(prompt)))
    return rows


def _tokens_read(model: Any, rows: Sequence[TokenRow], max_tokens: int) -> int:
    counts: list[int] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda _module, _given, named: counts.append(named["input_ids"].numel()), with_kwargs=True
    )
    logprobs(model, rows, temperature=1.0, max_tokens=max_tokens)
    hook.remove()
    return sum(counts)


def growth(folder: Path, steps: int = 6) -> list[dict[str, float]]:
    """Seconds of a step of `value` as responses, batches and groups grow, and per sampled token."""
    print(f"\n{'new tokens':>12}{'rollouts':>10}{'K':>4}{'CPU s':>9}{'ms a token':>12}")
    found = []
    sizes = [(32, 32, 4), (64, 32, 4), (128, 32, 4), (256, 32, 4), (32, 64, 4), (32, 128, 4), (32, 32, 8), (32, 32, 16)]
    for tokens, rollouts, group in sizes:
        overrides = [
            f"sampling.max_turn_tokens={tokens}", f"rollout.batch_size={rollouts}", f"rollout.group_size={group}",
            f"critic.replay.refill_size={rollouts}",
        ]  # fmt: skip
        parts: Parts = build(load_base(own.configured(folder, "value", overrides)))
        taken = [_seconds(lambda step=step, parts=parts: train_step(parts, step)) for step in range(steps)]
        parts.engine.close()
        seconds = statistics.median(taken[2:])
        print(f"{tokens:12}{rollouts:10}{group:4}{seconds:9.3f}{1e3 * seconds / (tokens * rollouts):12.3f}")
        found.append({"new_tokens": tokens, "rollouts": rollouts, "group_size": group, "seconds": seconds})
    return found


def memory(_: Path) -> list[dict[str, float | str]]:
    """How much more a process holds at the peak of an update, beside the embedding table's gradient."""
    print(f"\n{'update of':12}{'vocabulary':>12}{'peak MiB':>10}{'less the table':>16}")
    found: list[dict[str, float | str]] = []
    for role in ("critic", "policy"):
        for vocabulary in (1_000, 150_000):
            # A process of its own: the peak of one is never taken back.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peak_of_update = pool.apply(_peak_of_update, (role, vocabulary))
            # The gradient of the table is as large as the table; the policy ties its output layer to it.
            rest = peak_of_update - vocabulary * 128 * 4 / 2**20
            print(f"{role:12}{vocabulary:12,}{peak_of_update:10.1f}{rest:16.1f}")
            found.append({"role": role, "vocabulary": vocabulary, "peak_mib": peak_of_update, "rest_mib": rest})
    return found


def _peak_of_update(role: str, vocabulary: int) -> float:
    """MiB that forward and backward pass of 64 rows of 128 tokens add to the process."""
    torch.set_num_threads(1)
    policy = workload.model_of(vocabulary)
    rows = _rows([128] * 64, 6)
    model = ValueModel.from_policy(policy, Bce(), seed=0) if role == "critic" else policy
    if role == "critic":
        del policy
    read = action_value_outputs if role == "critic" else (lambda *given: action_logprobs(*given, temperature=1.0))
    (warm,) = in_micro_batches(model, rows[:1], max_tokens=MAX_TOKENS)
    with torch.no_grad():
        read(model, warm)
    before = held_mib()
    for micro in in_micro_batches(model, rows, max_tokens=MAX_TOKENS):
        torch.autograd.backward(read(model, micro).sum())
    return peak_mib() - before


def peak(_: Path, repeats: int = 3) -> dict[str, float]:
    """SmolLM2-135M: the arithmetic of an update's passes against the machine's best matrix product, one thread."""
    size = 2048
    left, right = torch.randn(size, size), torch.randn(size, size)
    (best,) = _alternating([lambda: left @ right], 5)
    per_second = 2 * size**3 / best
    found = {"matmul_gflops": per_second / 1e9}
    print(f"\nbest matrix product: {per_second / 1e9:.0f} GFLOP/s")
    for packed in (False, True):
        model = load_causal_lm("smollm2").model
        if packed:
            read_packed(model)
        lengths = drawn("log-normal", 16, 128)
        split = micro_batches(lengths, max_tokens=2048, packed=packed)
        rows = _rows(lengths, 6)
        (seconds,) = _alternating([lambda model=model: _update(model, rows, split)], repeats)  # noqa: B023
        # The table is a look-up on the way in and a product on the way out, for the wanted tokens alone.
        table = model.get_input_embeddings().weight.numel()
        inner = sum(weight.numel() for weight in model.parameters()) - table
        wanted = sum(int(row.mask.sum()) for row in rows)
        flops = 6 * (inner * sum(lengths) + table * wanted)
        share = flops / seconds / per_second
        name = "packed" if packed else "padded"
        print(f"SmolLM2, {name}: {sum(lengths) / seconds:.0f} tokens/s forwards and backwards, {share:.0%} of it")
        found |= {f"{name}_tokens_per_second": sum(lengths) / seconds, f"{name}_share_of_peak": share}
    return found


def drawn(kind: str, count: int, mean: int) -> list[int]:
    """Row lengths of one of the `LENGTHS`; their seed is none that a constant of the layouts was chosen with."""
    rng = np.random.default_rng(11)
    lengths = {
        "log-normal": rng.lognormal(np.log(mean), 0.5, count),
        "geometric": 6 + rng.geometric(1 / (mean - 6), count),
        "uniform": rng.integers(7, 2 * mean - 6, count),
        "two kinds": np.where(rng.random(count) < 0.5, 0.4, 1.6) * mean * rng.normal(1, 0.1, count),
        "equal": np.full(count, mean),
        "one longer": np.where(np.arange(count) == 0, 8 * mean, mean),
    }[kind]
    return [int(length) for length in np.clip(lengths, 8, 2048)]


def _rows(lengths: Sequence[int], prompt: int) -> list[TokenRow]:
    rng = np.random.default_rng(0)
    return [
        TokenRow(token_ids=rng.integers(64, 90, length), mask=np.arange(length) >= min(prompt, length - 1))
        for length in lengths
    ]


def _seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def _alternating(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median CPU seconds of each, one after the other again and again, after one that is not counted."""
    taken: list[list[float]] = [[] for _ in functions]
    for number in range(repeats + 1):
        for index, function in enumerate(functions):
            seconds = _seconds(function)
            if number:
                taken[index].append(seconds)
    return [statistics.median(each) for each in taken]


if __name__ == "__main__":
    main()
