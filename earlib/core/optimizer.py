"""The gradient step of Eq. 18, by the functions of `torch.optim`.

Its classes import torch's compiler at the first step of a process, which takes two seconds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

COMMON: dict[str, Any] = {"fused": True, "weight_decay": 0.0, "maximize": False}
ADAM = COMMON | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
SGD = COMMON | {"momentum": 0.0, "dampening": 0.0, "nesterov": False}


class Optimizer:
    """Adam, or the plain step, on parameters with a learning rate each."""

    def __init__(self, kind: str, parameters: Sequence[Tensor], rates: Sequence[float]):
        self.kind, self.parameters, self.rates = kind, parameters, rates
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # Adam's of each parameter, from the first step on

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter by its `grad`."""
        for parameter, rate in zip(self.parameters, self.rates, strict=True):
            assert (gradient := parameter.grad) is not None
            if self.kind == "sgd":
                sgd([parameter], [gradient], [None], lr=rate, **SGD)
                continue
            if parameter not in self.state:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}
            held = self.state[parameter]
            mean, square, step = ([held[name]] for name in ("exp_avg", "exp_avg_sq", "step"))
            adam([parameter], [gradient], mean, square, [], step, lr=rate, **ADAM)
