"""Gradients of weighted sums of log-probs, one trajectory at a time, exact or as a sketch of stated error.

Shapes: T tokens of a trajectory, N its action tokens, E weightings, D parameters, S cells of a sketch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lecritique.analysis.gradient_statistics import GradientSums
from lecritique.core.trajectory import Trajectory
from lecritique.models.scoring import action_logprobs, in_micro_batches, token_row

SKETCH_CELLS = 4096
# Sums of every problem and weighting are held at once; beyond this they are sketched.
_EXACT_BYTES = 1 << 30
_COLUMNS_AT_ONCE = 1 << 16


class ScoreGradients:
    """sum_t w_t grad log p(token t) of the action tokens, for a policy that stays as it is.

    Args:
        model: the policy.
        temperature: of its distribution.
        cells: None keeps every parameter; a number folds them into so many cells (count sketch: each parameter goes
            to a random cell with a random sign), which keeps squared norms and inner products without bias.
        seed: of the sketch.
    """

    def __init__(self, model: Any, *, temperature: float, cells: int | None = None, seed: int = 0) -> None:
        self._model = model
        self._temperature = temperature
        self._cells = cells
        self._seed = seed
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    @property
    def parameters(self) -> int:
        """D."""
        return sum(p.numel() for p in self._parameters)

    @property
    def width(self) -> int:
        """Numbers that are kept of a gradient."""
        return self._cells or self.parameters

    @property
    def relative_error(self) -> float:
        """Standard error of a squared norm relative to it, at most: sqrt(2 / cells); 0 when exact."""
        return math.sqrt(2.0 / self._cells) if self._cells else 0.0

    def weighted(self, trajectory: Trajectory, weights_ET: Sequence[NDArray[np.float64]]) -> torch.Tensor:
        """The gradients of several weightings of one trajectory, [E, width] float32 on the CPU.

        Args:
            trajectory: with at least one action token.
            weights_ET: E columns [T]; what stands off the action mask is not read.
        """
        logprobs_N = self._logprobs(trajectory)
        return torch.stack([self._gradient(logprobs_N, column[trajectory.action_mask]) for column in weights_ET])

    def token_norms_sq(self, trajectory: Trajectory, actions: Sequence[int]) -> NDArray[np.float64]:
        """|grad log p(token)|^2 of some action tokens, by their index among the action tokens."""
        logprobs_N = self._logprobs(trajectory)
        unit = np.eye(trajectory.action_tokens)
        return np.array([float(self._gradient(logprobs_N, unit[i]).double().square().sum()) for i in actions])

    def _logprobs(self, trajectory: Trajectory) -> torch.Tensor:
        (batch,) = in_micro_batches(self._model, [token_row(trajectory)], max_tokens=len(trajectory))
        return action_logprobs(self._model, batch, temperature=self._temperature)

    def _gradient(self, logprobs_N: torch.Tensor, weights_N: NDArray[np.float64]) -> torch.Tensor:
        weights = torch.from_numpy(np.array(weights_N)).to(logprobs_N)
        found = torch.autograd.grad(logprobs_N @ weights, self._parameters, retain_graph=True, allow_unused=True)
        pieces = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self._parameters, strict=True)]
        if self._cells is None:
            return torch.cat([piece.flatten().float() for piece in pieces]).cpu()
        sketch = torch.zeros(self._cells, device=pieces[0].device)
        for index, piece in enumerate(pieces):
            self._fold(piece.flatten().float(), index, sketch)
        return sketch.cpu()

    def _fold(self, piece: torch.Tensor, index: int, sketch: torch.Tensor) -> None:
        """Add a parameter's gradient to the sketch; its cells and signs are drawn again each time, never stored."""
        assert self._cells is not None
        generator = torch.Generator(device=piece.device).manual_seed(self._seed * 1_000_003 + index)
        cell = torch.randint(self._cells, piece.shape, generator=generator, device=piece.device)
        sign = 1.0 - 2.0 * torch.randint(2, piece.shape, generator=generator, device=piece.device)
        sketch.index_add_(0, cell, sign * piece)


class ProblemSums:
    """Adds up per-trajectory gradients of several weightings, problem by problem.

    Args:
        problems: P.
        weightings: E.
        width: numbers of a gradient.
    """

    def __init__(self, problems: int, weightings: int, width: int) -> None:
        self._sums = torch.zeros(weightings, problems, width)
        self._norms_sq = np.zeros((weightings, problems))
        self._trajectories = np.zeros(problems)

    def add(self, problem: int, gradients_EW: torch.Tensor) -> None:
        """Take one trajectory's gradients."""
        self._sums[:, problem] += gradients_EW
        self._norms_sq[:, problem] += gradients_EW.double().square().sum(-1).numpy()
        self._trajectories[problem] += 1

    def sums(self) -> list[GradientSums]:
        """What is kept of each weighting, over the problems that have a trajectory."""
        kept = self._trajectories > 0
        return [
            GradientSums(
                trajectories=self._trajectories[kept],
                norms_sq=self._norms_sq[weighting, kept],
                gram=_gram(self._sums[weighting, torch.from_numpy(kept)]),
            )
            for weighting in range(len(self._sums))
        ]


def cells_for(parameters: int, *, problems: int, weightings: int) -> int | None:
    """None where all gradients fit into memory as they are, else the cells of a sketch."""
    exact = 4 * parameters * problems * weightings <= _EXACT_BYTES
    return None if exact else SKETCH_CELLS


def _gram(sums_PW: torch.Tensor) -> NDArray[np.float64]:
    gram = torch.zeros(len(sums_PW), len(sums_PW), dtype=torch.float64)
    for piece in torch.split(sums_PW, _COLUMNS_AT_ONCE, dim=1):
        wide = piece.double()
        gram += wide @ wide.T
    return gram.numpy()
