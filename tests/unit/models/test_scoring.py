"""Log-probs and values against a full softmax of each sequence alone, whatever the batching."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import VOCABULARY, literal_logprobs, small_policy, trajectory

from lecritique.config.losses import Bce, Mse
from lecritique.core.errors import ConfigurationError
from lecritique.core.trajectory import ContextInsertion
from lecritique.models import scoring
from lecritique.models.scoring import (
    TokenRow,
    action_logprobs,
    action_value_outputs,
    in_micro_batches,
    logprobs,
    logprobs_of_states,
    require_plain_head,
    scaled_logits,
    token_row,
    values,
)
from lecritique.models.value_model import ValueModel

LENGTHS = (9, 3, 14, 9, 2, 6, 11)


def rows_of(lengths=LENGTHS, *, seed: int = 0) -> list[TokenRow]:
    """Ragged rows with the wanted tokens scattered behind the first."""
    rng = np.random.default_rng(seed)
    return [
        TokenRow(
            token_ids=rng.integers(0, VOCABULARY, length),
            mask=np.array([False, *(rng.random(length - 2) < 0.6), True]),
        )
        for length in lengths
    ]


@pytest.fixture(scope="module")
def policy():
    return small_policy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_full_softmax_of_each_sequence_at_the_position_before(policy, temperature: float) -> None:
    rows = rows_of()
    for row, found in zip(rows, logprobs(policy, rows, temperature=temperature, max_tokens=30), strict=True):
        expected = literal_logprobs(policy, row.token_ids, temperature=temperature)[row.mask]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_fault_34_temperature_divides_logits() -> None:
    head = torch.nn.Linear(3, 3, bias=False).double()
    head.weight.data = torch.eye(3, dtype=torch.float64)
    states = torch.tensor([[2.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    found = logprobs_of_states(head, states, torch.arange(3), temperature=0.6)
    assert found.tolist() == pytest.approx([-0.2026, -1.8692, -3.5359], abs=5e-5)


def test_half_precision_logits_are_scaled_in_float32() -> None:
    logits = torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    assert scaled_logits(logits, 0.7).tolist() == (torch.tensor([1.0, 3.0]) / 0.7).tolist()
    assert scaled_logits(logits.double(), 1.0).dtype == torch.float64


@pytest.mark.parametrize("max_tokens", [1, 20, 43, 10_000])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6), (6, 2, 0, 5, 1, 4, 3)])
def test_fault_8_any_split_and_order_gives_the_same_in_input_order(order, max_tokens: int) -> None:
    policy = small_policy(dtype=torch.float32)
    critic = ValueModel.from_policy(policy, Bce(), seed=3)
    rows = rows_of()
    alone = [logprobs(policy, [row], temperature=1.0, max_tokens=1)[0] for row in rows]
    valued = [values(critic, [row], max_tokens=1)[0] for row in rows]
    shuffled = [rows[index] for index in order]
    found = logprobs(policy, shuffled, temperature=1.0, max_tokens=max_tokens)
    found_values = values(critic, shuffled, max_tokens=max_tokens)
    for place, index in enumerate(order):
        assert len(found[place]) == len(found_values[place]) == rows[index].mask.sum()
        np.testing.assert_allclose(found[place], alone[index], atol=1e-5)
        np.testing.assert_allclose(found_values[place], valued[index], atol=1e-5)


def test_rows_without_wanted_tokens_and_no_rows_at_all(policy) -> None:
    none = TokenRow(token_ids=np.array([1, 2, 3]), mask=np.zeros(3, dtype=bool))
    some = rows_of((5,))[0]
    found = logprobs(policy, [none, some], temperature=1.0, max_tokens=100)
    assert len(found[0]) == 0 and len(found[1]) == some.mask.sum()
    assert logprobs(policy, [], temperature=1.0, max_tokens=100) == []


def test_fault_3_a_pad_id_that_equals_a_real_id_changes_nothing(policy) -> None:
    """Padding uses id 0; rows that end in id 0 have as many wanted tokens as their own mask says."""
    short = TokenRow(token_ids=np.array([5, 6, 0]), mask=np.array([False, True, True]))
    long = rows_of((8,))[0]
    found = logprobs(policy, [short, long], temperature=1.0, max_tokens=100)[0]
    np.testing.assert_allclose(found, literal_logprobs(policy, [5, 6, 0])[1:], atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_chunked_logits_equal_unchunked_in_value_and_gradient_and_stay_small(monkeypatch, chunk: int) -> None:
    rows = rows_of((12, 12, 11, 12))  # of one micro-batch
    outcomes = []
    for limit in (1 << 24, chunk * VOCABULARY):
        monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", limit)
        policy = small_policy(tied=False)
        sizes: list[int] = []
        policy.lm_head.register_forward_hook(lambda *call, sizes=sizes: sizes.append(call[2].shape[0]))
        (batch,) = in_micro_batches(policy, rows, max_tokens=10_000)
        lp_N = action_logprobs(policy, batch, temperature=0.7)
        weights_N = torch.linspace(-1, 1, len(lp_N), dtype=torch.float64)
        (lp_N * weights_N).sum().backward()
        outcomes.append((lp_N.detach(), [p.grad for p in policy.parameters()], max(sizes)))
    (whole, grads, widest), (pieces, grads_of_pieces, largest) = outcomes
    assert widest == len(whole) and largest == min(chunk, len(whole))
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-14)
    for one, other in zip(grads, grads_of_pieces, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-13)


def test_scoring_without_gradient_is_chunked_too(monkeypatch, policy) -> None:
    rows = rows_of()
    expected = logprobs(policy, rows, temperature=1.0, max_tokens=1000)
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", 2 * VOCABULARY)
    sizes: list[int] = []
    hook = policy.lm_head.register_forward_hook(lambda *call: sizes.append(call[2].shape[0]))
    found = logprobs(policy, rows, temperature=1.0, max_tokens=1000)
    hook.remove()
    assert max(sizes) == 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13)


def test_values_are_the_head_on_the_state_before_the_token(policy) -> None:
    critic = ValueModel.from_policy(policy, Mse(), seed=5)
    for row, found in zip(rows_of(), values(critic, rows_of(), max_tokens=40), strict=True):
        with torch.no_grad():
            states = critic.backbone(input_ids=torch.tensor(row.token_ids)[None], use_cache=False).last_hidden_state[0]
            emitted = (states @ critic.head.weight[0] + critic.head.bias[0]).tolist()
        expected = [emitted[t - 1] for t in np.flatnonzero(row.mask)]
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_fault_1_changing_a_token_leaves_its_own_value_and_all_before_bit_identical(policy) -> None:
    critic = ValueModel.from_policy(policy, Bce(), seed=5)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 10)
    mask = np.arange(10) > 0
    before = values(critic, [TokenRow(token_ids=ids, mask=mask)], max_tokens=100)[0]
    for t in range(1, 9):
        changed = ids.copy()
        changed[t] = (changed[t] + 1) % VOCABULARY
        after = values(critic, [TokenRow(token_ids=changed, mask=mask)], max_tokens=100)[0]
        # Entry n belongs to token n + 1.
        assert after[:t].tolist() == before[:t].tolist()
        assert (after[t:] != before[t:]).all()


def test_value_outputs_have_one_row_per_wanted_token_in_the_order_of_gathered(policy) -> None:
    critic = ValueModel.from_policy(policy, Bce(), seed=5)
    rows = rows_of()
    names = [np.full(int(row.mask.sum()), index) for index, row in enumerate(rows)]
    for batch in in_micro_batches(policy, rows, max_tokens=30):
        outputs = action_value_outputs(critic, batch)
        owners = batch.gathered(names, torch.long)
        assert outputs.shape == (len(owners), 2)
        assert owners.tolist() == [batch.indices[row] for row in batch.row_index_N().tolist()]
        wanted = [rows[index].token_ids[rows[index].mask] for index in batch.indices]
        assert batch.targets_N.tolist() == np.concatenate(wanted).tolist()


def test_inserted_context_is_read_but_never_wanted() -> None:
    own = trajectory([0, 0, 1, 1])
    row = token_row(own, ContextInsertion(position=1, token_ids=np.array([7, 8, 9])))
    assert row.token_ids.tolist() == [own.token_ids[0], 7, 8, 9, *own.token_ids[1:]]
    assert row.mask.tolist() == [False, False, False, False, False, True, True]
    assert token_row(own).token_ids is own.token_ids


def test_a_wanted_first_token_is_refused(policy) -> None:
    row = TokenRow(token_ids=np.array([1, 2]), mask=np.array([True, True]))
    with pytest.raises(ValueError, match="no state before"):
        logprobs(policy, [row], temperature=1.0, max_tokens=10)


class SoftCapped(torch.nn.Module):
    """A model whose logits are squeezed after the output embedding, as some families do."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner
        self.config, self.device = inner.config, inner.device
        self.get_decoder, self.get_output_embeddings = inner.get_decoder, inner.get_output_embeddings

    def forward(self, **inputs):
        return SimpleNamespace(logits=2.0 * torch.tanh(self.inner(**inputs).logits / 2.0))


def test_a_model_that_changes_its_logits_after_the_head_is_refused(policy) -> None:
    require_plain_head(policy, "plain")
    with pytest.raises(ConfigurationError, match="'capped' changes its logits"):
        require_plain_head(SoftCapped(copy.deepcopy(policy)), "capped")


def test_what_stands_behind_the_last_wanted_token_is_not_read(policy) -> None:
    row = TokenRow(token_ids=np.array([4, 5, 6, 7, 8]), mask=np.array([False, True, True, False, False]))
    (batch,) = in_micro_batches(policy, [row], max_tokens=100)
    assert batch.token_ids_BL.tolist() == [[4, 5, 6]] and row.read_tokens == 3
    expected = literal_logprobs(policy, row.token_ids)[1:3]
    np.testing.assert_allclose(logprobs(policy, [row], temperature=1.0, max_tokens=9)[0], expected, atol=1e-12)
