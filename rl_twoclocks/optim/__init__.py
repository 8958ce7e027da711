"""Optimizers by name, on flat parameters where the algorithm is elementwise."""

from rl_twoclocks.optim.agc import adaptive_clip
from rl_twoclocks.optim.build import FUSED, check_optimizer, make_optimizer
from rl_twoclocks.optim.flat import FlatParameters

__all__ = ["FUSED", "FlatParameters", "adaptive_clip", "check_optimizer", "make_optimizer"]
