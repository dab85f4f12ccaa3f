"""Which process this is, which rows it reads, and what a model must say of itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lecritique.core.errors import CheckpointError, ConfigurationError
from lecritique.distributed.checkpoints import load_sharded, taken_apart
from lecritique.distributed.groups import VARIABLES, Place, place_of, process_group
from lecritique.distributed.together import micro_batches_of, shared_out
from lecritique.models.loading import load_causal_lm
from lecritique.models.recomputation import decoder_layers
from lecritique.runs.checkpoints import Checkpoints

SET = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_torchruns_variables_say_which_process_this_is():
    place = place_of(SET)
    assert (place.rank, place.ranks, place.local_rank) == (3, 4, 1)
    assert place.device("cuda") == torch.device("cuda", 1) and place.device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", VARIABLES)
def test_a_missing_variable_is_named(name):
    with pytest.raises(ConfigurationError, match=f"and {name} is not set: start the processes with torchrun"):
        place_of({**SET, name: ""})


def test_several_missing_variables_are_named():
    with pytest.raises(ConfigurationError, match="and RANK, MASTER_PORT are not set"):
        place_of({key: value for key, value in SET.items() if key not in ("RANK", "MASTER_PORT")})


@pytest.mark.parametrize("change", [{"RANK": "4"}, {"RANK": "-1"}, {"LOCAL_RANK": "4"}, {"WORLD_SIZE": "0"}])
def test_a_rank_outside_of_its_group_is_refused(change):
    with pytest.raises(ConfigurationError, match="expected 0 <= LOCAL_RANK <= RANK < WORLD_SIZE"):
        place_of(SET | change)


def test_a_rank_that_is_no_number_is_refused():
    with pytest.raises(ConfigurationError, match="must be whole numbers"):
        place_of(SET | {"RANK": "first"})


def test_a_group_that_does_not_come_together_says_so(tmp_path):
    folder = tmp_path / "missing" / "meeting"
    with (
        pytest.raises(ConfigurationError, match="the 2 processes cannot be joined with gloo"),
        process_group(Place(rank=0, ranks=2, local_rank=0), torch.device("cpu"), meeting=folder),
    ):
        raise AssertionError("there is no group")


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 40])
def test_every_row_is_read_once_and_all_processes_read_about_as_much(rows, ranks):
    lengths = np.random.default_rng([rows, ranks]).integers(1, 100, rows).tolist()
    shares = shared_out(lengths, ranks)
    assert sorted(index for share in shares for index in share) == list(range(rows))
    loads = [sum(lengths[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@pytest.mark.parametrize("max_tokens", [1, 60, 250, 10_000])
def test_all_processes_have_as_many_micro_batches(max_tokens):
    lengths = np.random.default_rng(1).integers(1, 100, 23).tolist()
    every = micro_batches_of(lengths, max_tokens=max_tokens, ranks=3)
    assert len({len(batches) for batches in every}) == 1
    assert sorted(i for batches in every for batch in batches for i in batch) == list(range(23))
    for batch in (batch for batches in every for batch in batches if len(batch) > 1):
        assert len(batch) * max(lengths[i] for i in batch) <= max_tokens


def test_a_single_row_leaves_the_other_processes_an_empty_micro_batch():
    assert micro_batches_of([5], max_tokens=10, ranks=3) == [[[0]], [[]], [[]]]


def test_layers_are_what_the_model_names():
    policy = load_causal_lm("tiny").model
    assert decoder_layers(policy) == list(policy.get_decoder().layers)
    with pytest.raises(ConfigurationError, match="class Linear does not name its layers"):
        decoder_layers(torch.nn.Linear(2, 2))


def test_a_checkpoint_without_shards_loads_as_it_is(tmp_path):
    tree = {"step": 1, "weights": {"a": torch.arange(3.0)}, "column": np.arange(4), "text": ["x", None]}
    assert taken_apart(tree)[1] == {}
    path = Checkpoints(tmp_path).save(1, taken_apart(tree)[0])
    found = load_sharded(path)
    assert torch.equal(found["weights"]["a"], tree["weights"]["a"]) and found["text"] == ["x", None]


def test_shards_that_are_missing_or_misnamed_are_refused(tmp_path):
    mark = {"sharded": "policy.a", "shape": [2, 3], "dtype": "float32"}
    path = Checkpoints(tmp_path).save(1, {"a": mark})
    with pytest.raises(CheckpointError, match=r"the shards of the checkpoint '.*' cannot be read"):
        load_sharded(path)
    marks = ({"dtype": "no_dtype"}, {"dtype": "load"}, {"shape": [-1]}, {"shape": "x"})
    for step, broken in enumerate(marks, start=2):
        path = Checkpoints(tmp_path).save(step, {"a": mark | broken})
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_sharded(path)
