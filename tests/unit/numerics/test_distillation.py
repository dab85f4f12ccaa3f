"""OPSD divergences: hand examples, chunks against full logits, gradients, bounds and bad input."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lecritique.numerics.distillation import divergence_of_logits, opsd_divergence

F64 = torch.float64
KINDS = ["forward_kl", "reverse_kl", "jsd"]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def inputs(tokens: int = 7, words: int = 11, dtype: torch.dtype = F64) -> list[torch.Tensor]:
    """Student and teacher, of different widths."""
    shapes = ((tokens, 4), (words, 4), (tokens, 3), (words, 3))
    return [normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def full(inputs: list[torch.Tensor], temperature: float = 1.0, **settings) -> torch.Tensor:
    student, student_head, teacher, teacher_head = inputs
    logits = student @ student_head.T / temperature, teacher @ teacher_head.T / temperature
    return divergence_of_logits(*logits, **settings)


def test_divergences_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([0.9, 0.1], dtype=F64)
    m = torch.tensor([0.7, 0.3], dtype=F64)

    def kl(a: torch.Tensor, b: torch.Tensor) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a.tolist(), b.tolist(), strict=True))

    student, teacher = p.log(), q.log() + 3.0
    assert divergence_of_logits(student, teacher).item() == pytest.approx(kl(q, p), abs=1e-14)
    assert divergence_of_logits(student, teacher, kind="reverse_kl").item() == pytest.approx(kl(p, q), abs=1e-14)
    jsd = divergence_of_logits(student, teacher, kind="jsd").item()
    assert jsd == pytest.approx(0.5 * kl(q, m) + 0.5 * kl(p, m), abs=1e-14)
    skewed = divergence_of_logits(student, teacher, kind="jsd", beta=0.75).item()
    m = 0.75 * q + 0.25 * p
    assert skewed == pytest.approx(0.75 * kl(q, m) + 0.25 * kl(p, m), abs=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 7, 100, None])
def test_chunks_change_nothing_in_value_or_gradient(kind: str, chunk: int | None) -> None:
    grad_N = normal(7, seed=9)
    results = []
    for divergence in (
        lambda x: full(x, temperature=0.7, kind=kind),
        lambda x: opsd_divergence(*x, kind=kind, temperature=0.7, chunk_tokens=chunk),
    ):
        tensors = [x.requires_grad_() for x in inputs()]
        found = divergence(tensors)
        found.backward(grad_N)
        results.append((found.detach(), tensors[0].grad, tensors[1].grad))
        assert tensors[2].grad is None
        assert tensors[3].grad is None
    for expected, found in zip(*results, strict=True):
        assert torch.allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_in_single_precision_chunks_equal_the_full_computation_to_1e_5(kind: str) -> None:
    tensors = [normal(40, 16, dtype=torch.float32), normal(5000, 16, seed=1, dtype=torch.float32)]
    tensors += [normal(40, 16, seed=2, dtype=torch.float32), normal(5000, 16, seed=3, dtype=torch.float32)]
    results = []
    for divergence in (lambda x: full(x, kind=kind), lambda x: opsd_divergence(*x, kind=kind, chunk_tokens=7)):
        leaves = [x.clone().requires_grad_() for x in tensors]
        found = divergence(leaves)
        found.mean().backward()
        results.append((found.detach(), leaves[0].grad, leaves[1].grad))
    for expected, found in zip(*results, strict=True):
        assert (found - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    student, student_head, teacher, teacher_head = inputs(tokens=3, words=5)
    mask = torch.tensor([True, False, True])
    assert torch.autograd.gradcheck(
        lambda s, h: opsd_divergence(
            s, h, teacher, teacher_head, kind=kind, beta=0.3, temperature=1.4, chunk_tokens=2, action_mask_N=mask
        ),
        (student.requires_grad_(), student_head.requires_grad_()),
    )


def test_a_frozen_head_or_frozen_states_get_no_gradient() -> None:
    tensors = inputs()
    tensors[0].requires_grad_()
    opsd_divergence(*tensors).sum().backward()
    assert tensors[1].grad is None
    both, tensors = tensors[0].grad, inputs()
    tensors[1].requires_grad_()
    opsd_divergence(*tensors).sum().backward()
    assert tensors[0].grad is None
    assert tensors[1].grad.abs().max() > 0
    assert both.abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_equal_distributions_have_no_divergence_and_no_gradient(kind: str) -> None:
    student, head, *_ = inputs()
    leaf = student.clone().requires_grad_()
    found = opsd_divergence(leaf, head, student, head, kind=kind)
    found.sum().backward()
    assert found.abs().max() < 1e-14
    assert leaf.grad.abs().max() < 1e-14


def test_bounds_and_symmetry() -> None:
    tensors = [3 * x for x in inputs(tokens=40)]
    forward, reverse, jsd = (opsd_divergence(*tensors, kind=kind) for kind in KINDS)
    assert forward.min() > 0
    assert reverse.min() > 0
    assert 0 < jsd.min() <= jsd.max() <= math.log(2)
    swapped = tensors[2:] + tensors[:2]
    assert torch.allclose(opsd_divergence(*swapped, kind="jsd"), jsd, atol=1e-13)
    assert torch.allclose(opsd_divergence(*swapped, kind="reverse_kl"), forward, atol=1e-13)


def test_a_skewed_mixture_tends_to_the_two_divergences() -> None:
    tensors = [0.5 * x for x in inputs()]
    near = opsd_divergence(*tensors, kind="jsd", beta=1e-6) / 1e-6
    assert torch.allclose(near, opsd_divergence(*tensors), rtol=1e-4)
    far = opsd_divergence(*tensors, kind="jsd", beta=1 - 1e-6) / 1e-6
    assert torch.allclose(far, opsd_divergence(*tensors, kind="reverse_kl"), rtol=1e-4)


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_masked_content_is_not_read(kind: str, junk: float) -> None:
    mask = torch.tensor([True, False, True, True, False, False, True])

    def run(junk: float | None) -> tuple[torch.Tensor, ...]:
        student, student_head, teacher, teacher_head = inputs()
        if junk is not None:
            student, teacher = (x.masked_fill(~mask[:, None], junk) for x in (student, teacher))
        student, student_head = student.requires_grad_(), student_head.requires_grad_()
        found = opsd_divergence(student, student_head, teacher, teacher_head, kind=kind, action_mask_N=mask)
        found.sum().backward()
        return found.detach(), student.grad, student_head.grad

    clean, dirty = run(None), run(junk)
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before, after)
    assert clean[0][~mask].eq(0).all()
    assert clean[1][~mask].eq(0).all()


def test_a_word_that_is_impossible_for_both_adds_nothing() -> None:
    student = torch.tensor([0.0, 1.0, -math.inf], dtype=F64)
    teacher = torch.tensor([1.0, 0.0, -math.inf], dtype=F64)
    for kind in KINDS:
        with_it = divergence_of_logits(student, teacher, kind=kind)
        assert with_it.item() == pytest.approx(divergence_of_logits(student[:2], teacher[:2], kind=kind).item())


def test_no_tokens_and_half_precision() -> None:
    tensors = inputs()
    mask = torch.zeros(7, dtype=torch.bool)
    leaf = tensors[0].requires_grad_()
    found = opsd_divergence(*tensors, action_mask_N=mask)
    found.sum().backward()
    assert found.tolist() == [0.0] * 7
    assert leaf.grad.eq(0).all()
    half = [x.detach().to(torch.bfloat16) for x in tensors]
    half[0].requires_grad_()
    half[1].requires_grad_()
    found = opsd_divergence(*half)
    found.sum().backward()
    assert found.dtype == torch.float32
    assert half[1].grad.dtype == torch.bfloat16
    assert torch.allclose(found.double(), full([x.detach() for x in tensors]), rtol=0.1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_150_000_words_and_8_192_tokens_take_less_than_a_gibibyte(kind: str) -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "opsd_memory.py"
    command = [sys.executable, str(script), "--kind", kind]
    environment = os.environ | {"PYTHONPATH": str(script.parents[1])}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    extra = float(output.split("extra memory ")[1].split(" MiB")[0])
    assert 50 < extra < 1024, output


def test_bad_input_is_refused() -> None:
    student, student_head, teacher, teacher_head = inputs()
    for settings, match in (
        ({"kind": "kl"}, "kind"),
        ({"beta": 0.0}, "beta"),
        ({"temperature": 0.0}, "temperature"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"action_mask_N": torch.ones(7)}, "boolean"),
        ({"action_mask_N": torch.ones(6, dtype=torch.bool)}, "mask"),
    ):
        with pytest.raises(ValueError, match=match):
            opsd_divergence(student, student_head, teacher, teacher_head, **settings)
    with pytest.raises(ValueError, match="student states"):
        opsd_divergence(student, teacher_head, teacher, teacher_head)
    with pytest.raises(ValueError, match="share tokens"):
        opsd_divergence(student[:5], student_head, teacher, teacher_head)
    with pytest.raises(ValueError, match="share tokens"):
        opsd_divergence(student, student_head[:5], teacher, teacher_head)
    with pytest.raises(ValueError, match="expected"):
        divergence_of_logits(torch.zeros(3), torch.zeros(4))
