"""Collection: the behaviour policy, TorchRL's collector around it, and episode statistics."""

from rl_twoclocks.collect.behaviour import BehaviourPolicy
from rl_twoclocks.collect.episodes import Episodes
from rl_twoclocks.collect.sync import make_collector

__all__ = ["BehaviourPolicy", "Episodes", "make_collector"]
