"""A recurrent cell, and how one vector per frame carries what it needs.

What a network with memory takes of a frame is one vector: the observation, the state that the policy
acted with, and whether the frame starts a sequence. So a window is cut into sequences anywhere: each
begins with the stored state of its first frame, and takes up a stored state wherever time is cut (at
the beginning of an episode that state is 0). Source of stored states: Kapturowski et al. 2019 (R2D2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_twoclocks.config import ModelConfig

KEYS = ("memory", "next_memory")
"""Of a frame: the state that was acted with, and the one after it, each [..., S]."""


class Memory(nn.Module):
    """A GRU or LSTM cell whose state is one vector [n, S]; S is twice the units for an LSTM."""

    def __init__(self, inputs: int, config: ModelConfig, generator: torch.Generator) -> None:
        """Make the cell, with orthogonal weights gate by gate and biases of 0."""
        super().__init__()
        kind = nn.LSTMCell if config.memory == "lstm" else nn.GRUCell
        self.cell = kind(inputs, config.memory_units)
        self.units = config.memory_units
        self.size = self.units * (2 if config.memory == "lstm" else 1)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                continue
            for gate in parameter.data.split(self.units):
                nn.init.orthogonal_(gate, generator=generator)

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Output [n, units] and next state [n, S] for observations [n, obs].

        The equations of `nn.GRUCell` and `nn.LSTMCell`, written out: on CUDA these call kernels that
        can neither be compiled nor mapped over a batch of gradients.
        """
        hidden, cell = state[:, : self.units], self.cell
        given = F.linear(observation, cell.weight_ih, cell.bias_ih)
        kept = F.linear(hidden, cell.weight_hh, cell.bias_hh)
        if isinstance(cell, nn.GRUCell):
            reset, update, new = given.split(self.units, -1)
            reset_kept, update_kept, new_kept = kept.split(self.units, -1)
            new = torch.tanh(new + torch.sigmoid(reset + reset_kept) * new_kept)
            output = new + torch.sigmoid(update + update_kept) * (hidden - new)
            return output, output
        enter, forget, new, leave = (given + kept).split(self.units, -1)
        inner = torch.sigmoid(forget) * state[:, self.units :]
        inner = inner + torch.sigmoid(enter) * torch.tanh(new)
        output = torch.sigmoid(leave) * torch.tanh(inner)
        return output, torch.cat([output, inner], -1)

    def unroll(self, observation: Tensor, stored: Tensor, start: Tensor) -> Tensor:
        """Outputs [n, L, units] over sequences: observations [n, L, obs], stored states [n, L, S].

        Where `start`, bool [n, L, 1], the stored state is taken up instead of the running one; at the
        first frame always.
        """
        state, outputs = stored[:, 0], []
        for t in range(observation.shape[1]):
            if t > 0:
                state = torch.where(start[:, t], stored[:, t], state)
            output, state = self.step(observation[:, t], state)
            outputs.append(output)
        return torch.stack(outputs, 1)


def remember(observation: Tensor, state: Tensor, start: Tensor) -> Tensor:
    """One vector [..., obs + S + 1] per frame: observation, stored state and `start`, bool [...]."""
    return torch.cat([observation, state, start.unsqueeze(-1).to(observation)], -1)


def starts(done: Tensor) -> Tensor:
    """Frames [N, T] that do not go on from the one before, given where time is cut [N, T]."""
    return torch.cat([torch.ones_like(done[:, :1]), done[:, :-1]], 1)


def whole_sequences(keep: Tensor, frames: int, length: int) -> Tensor:
    """Frames of the sequences that hold most of the frames `keep` [k], about as many, in order."""
    held = torch.bincount(keep // length, minlength=frames // length)
    count = max(1, round(keep.numel() / length))
    chosen = torch.argsort(held, descending=True, stable=True)[:count].sort().values
    return (chosen.unsqueeze(1) * length + torch.arange(length, device=keep.device)).flatten()
