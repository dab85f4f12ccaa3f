"""The critic that a value service serves: found in a folder, loaded, and replaced without a pause."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from lecritique.core.errors import CheckpointError
from lecritique.critic.served import DoubleBuffered
from lecritique.models.loading import load_value_model
from lecritique.models.value_model import ValueModel, load_value_weights, value_model_folder

WEIGHTS = "value_model.safetensors"


class ServedCheckpoint:
    """A saved critic and its place on disk. Version 0 is what it was started with; every reload counts one up.

    Args:
        path: a run directory, its `weights` folder, or a folder with a saved value model.
        device: where the two copies go.

    Raises:
        CheckpointError: there is no critic, or one that cannot be used.
    """

    def __init__(self, path: Path, *, device: str = "cpu") -> None:
        folder = critic_folder(path)
        # Taken before the weights are read: a file replaced meanwhile is then named too early, never as loaded.
        digest = weights_digest(folder)
        model = load_value_model(folder, device=device)
        config = model.backbone.config.get_text_config()  # type: ignore[operator, union-attr]
        self.vocabulary = int(model.backbone.get_input_embeddings().weight.shape[0])  # type: ignore[operator, union-attr]
        self.context_length = int(config.max_position_embeddings)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.loss = model.loss
        self.served = DoubleBuffered(model, version=0)
        self._path = path
        self._named = (0, path, digest)
        self._reloading = threading.Lock()

    @property
    def source(self) -> tuple[Path, str]:
        """Where the newest loaded weights came from, and the digest of their file."""
        return self._named[1:]

    def reload(self, path: Path | None = None) -> int:
        """Load other weights of the same architecture beside those that serve; the version that will serve them.

        Args:
            path: as at the start; None reads again where the newest weights came from.

        Raises:
            CheckpointError: they cannot be used; what served goes on serving under its number.
        """
        with self._reloading:
            path = path or self._named[1]
            folder = critic_folder(path)
            version = self._named[0] + 1
            found: list[str] = []

            def fill(spare: ValueModel) -> None:
                found.append(weights_digest(folder))
                load_value_weights(spare, folder)

            try:
                self.served.load(version, fill)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise CheckpointError(f"'{folder}' cannot be read: {reason}.") from error
            self._named = (version, path, found[0])
            return version


def critic_folder(path: Path) -> Path:
    """The folder with the saved value model in `path`, which may be a whole run.

    Raises:
        CheckpointError: there is none.
    """
    try:
        folder = value_model_folder(path)
    except (OSError, ValueError) as error:  # a name that no file system takes
        raise CheckpointError(f"{str(path)[:200]!r} is not a path.") from error
    if folder is not None:
        return folder
    raise CheckpointError(
        f"'{path}' holds no saved critic: expected a run directory, its 'weights' folder, or a folder with {WEIGHTS}."
    )


def weights_digest(folder: Path) -> str:
    """Names the weights by their file's content."""
    with open(folder / WEIGHTS, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
