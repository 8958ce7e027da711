"""A module's parameters as views of one flat vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """One vector [P] that holds all parameters of a module, and names for its slices.

    The module's parameters become views of `vector`: writing it in place changes the module, and one
    copy of it publishes the whole policy.
    """

    def __init__(self, module: nn.Module) -> None:
        """Move the module's parameters into a new flat vector on their device."""
        self.module = module
        named = list(module.named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.sizes = [p.numel() for _, p in named]
        self.vector = torch.cat([p.detach().reshape(-1) for _, p in named])
        for (_, parameter), view in zip(named, self.split(self.vector), strict=True):
            parameter.data = view

    def split(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector [P] into views shaped like the parameters."""
        parts = vector.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Name the parts of a vector [P] as the module does, for `torch.func.functional_call`."""
        return dict(zip(self.names, self.split(vector), strict=True))

    def set_grad(self, grad: Tensor) -> None:
        """Point every parameter's `.grad` into a flat gradient [P]."""
        for parameter, view in zip(self.module.parameters(), self.split(grad), strict=True):
            parameter.grad = view
