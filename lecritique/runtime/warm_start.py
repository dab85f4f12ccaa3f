"""A critic that starts from another run's: `critic.init`. Its optimizer starts afresh."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from lecritique.config.adapters import Backbone, CopyBackbone
from lecritique.core.errors import CheckpointError
from lecritique.models.restoring import restore_trained
from lecritique.models.value_model import ValueModel, load_value_weights, value_model_folder
from lecritique.runs.checkpoints import FOLDER, Checkpoints
from lecritique.runtime.saving import saved_tree

_BACKBONE: TypeAdapter[Backbone] = TypeAdapter(Backbone)


def load_critic(model: ValueModel, source: Path) -> None:
    """Load the weights of a saved critic into `model`.

    Args:
        model: left as it was when an error is raised.
        source: a run directory (its final critic, else that of its newest checkpoint), or a folder with a value model.

    Raises:
        CheckpointError: there is no critic, or one of another architecture or value loss, or an unfinished run's with
            an adapter on other weights than those of `model`.
    """
    if not source.is_dir():
        raise CheckpointError(
            f"'critic.init' = '{source}' is not a directory; expected a run or a saved value model, such as "
            "`lecritique pretrain-value` makes. `critic.init=` starts from the policy instead."
        )
    folder = value_model_folder(source)
    if folder is not None:
        load_value_weights(model, folder)
        return
    path = Checkpoints(source / FOLDER).latest()
    if path is None:
        raise CheckpointError(f"'critic.init' = '{source}' holds neither a value model nor a run with a critic.")
    tree = saved_tree(path)
    values = tree["learner"]["values"]
    if values is None:
        raise CheckpointError(f"'critic.init' = '{source}' is a run without a critic.")
    saved = tree["config"]["critic"]["loss"]
    if saved != model.loss.model_dump(mode="json"):
        raise CheckpointError(
            f"the critic in '{path}' was trained with the loss {saved}, expected {model.loss.model_dump(mode='json')}."
        )
    # Runs from before there was a choice had a copy.
    backbone = _BACKBONE.validate_python(tree["config"]["critic"].get("backbone", {"type": "copy"}))
    adapter = None if isinstance(backbone, CopyBackbone) else backbone
    restore_trained(model, values["trainer"], adapter, role="critic")
