"""The configuration of the governor and its cures; one group per file in `interventions/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_twoclocks.config_base import Group


class TrimConfig(Group):
    """Entropy-gated batch trimming: below the gate, a round learns from part of its window."""

    enabled: bool = True
    """Allow it."""
    fraction: float = Field(default=0.7, gt=0, le=1)
    """Share of the frames that the round uses."""
    keep: Literal["newest", "first", "rare"] = "newest"
    """Which frames stay: the newest, the oldest, or those in the least visited cells. Advantages are
    computed over the whole window first, so no trajectory is cut."""


class ReseedConfig(Group):
    """Fresh episodes from a seeded stream when the data has lost its variety."""

    enabled: bool = True
    """Allow it."""
    noise: float = Field(default=0.01, ge=0)
    """Deviation of the noise on the next rollout's observations, in their running deviations."""
    rest: int = Field(default=10, ge=1)
    """Rounds between two reseedings, and never fewer than the longest episode takes."""


class StepConfig(Group):
    """Smaller steps while the policy moves too far from its data; never above the tuned rate."""

    enabled: bool = True
    """Allow it, on an alarm."""
    always: bool = False
    """Scale steps from the first round on, alarm or not."""
    kl_target: float = Field(default=0.02, gt=0)
    """KL per minibatch to the proximal policy that steps aim at, in nats per action dimension."""
    ess_base: float = Field(default=0.9, gt=0, le=1)
    """Effective sample size below which steps shrink as sqrt(ESS / base)."""
    kl_stop: float = Field(default=0.1, gt=0)
    """KL at which a round stops while this cure is on, in nats per action dimension."""
    hold: int = Field(default=20, ge=1)
    """Rounds for which it stays on after the alarm ended."""


class ClipConfig(Group):
    """A tighter bound on the gradient's norm while a layer's gradient stays high."""

    enabled: bool = True
    """Allow it."""
    factor: float = Field(default=0.5, gt=0, lt=1)
    """The bound is multiplied by this."""
    hold: int = Field(default=20, ge=1)
    """Rounds for which it stays on after the alarm ended."""


class RatioConfig(Group):
    """Online clock-ratio enforcement: a smaller window, then more fresh frames per version."""

    enabled: bool = True
    """Allow it, when data is too old for its policy."""
    rest: int = Field(default=20, ge=1)
    """Rounds between two changes."""


class PassesConfig(Group):
    """Fewer passes while the policy overfits to its window."""

    enabled: bool = True
    """Allow it."""
    rest: int = Field(default=10, ge=1)
    """Rounds between two changes, down or back up."""


class WidthConfig(Group):
    """An entropy bonus that holds a least width of the policy."""

    enabled: bool = True
    """Allow it."""
    std: float = Field(default=0.05, gt=0)
    """Gaussian: least mean deviation before squashing."""
    fraction: float = Field(default=0.02, gt=0, lt=1)
    """Categorical: least entropy as a share of its maximum."""
    coeff: float = Field(default=0.001, gt=0)
    """First weight of the bonus; grows by half per round while the policy is too narrow."""
    max_coeff: float = Field(default=0.05, gt=0)
    """Largest weight."""


class MemoryConfig(Group):
    """Free what can be freed when memory creeps."""

    enabled: bool = True
    """Allow it."""
    rest: int = Field(default=50, ge=1)
    """Rounds between two attempts."""


class RescueConfig(Group):
    """Go back before a reward cliff, and carry on with slower clocks and smaller steps."""

    enabled: bool = True
    """Allow it."""
    most: int = Field(default=6, ge=0)
    """At most this many times in a run."""
    before: int = Field(default=10, ge=1)
    """Rollouts before the cliff from which the state is taken."""
    every: int = Field(default=5, ge=1)
    """Rounds between two states kept to go back to."""
    shrink: float = Field(default=0.25, gt=0, le=1)
    """U and B are multiplied by this (2000 -> 500), within the family's band; B never shrinks less."""
    step: float = Field(default=0.25, gt=0, le=1)
    """The learning rate is multiplied by this at every rescue; 1 with `shrink` 1 is rollback alone."""
    entropy_coeff: float = Field(default=0.01, ge=0)
    """Least weight of the entropy bonus after a rescue."""


class InterventionsConfig(Group):
    """What may change training: the governor and its cures."""

    name: str = "custom"
    """Preset name."""
    governor: Literal["off", "observe", "guard"] = "guard"
    """off: none; observe: say what would be ordered, order nothing; guard: order it."""
    trim: TrimConfig = TrimConfig()
    reseed: ReseedConfig = ReseedConfig()
    step: StepConfig = StepConfig()
    clip: ClipConfig = ClipConfig()
    ratio: RatioConfig = RatioConfig()
    passes: PassesConfig = PassesConfig()
    width: WidthConfig = WidthConfig()
    memory: MemoryConfig = MemoryConfig()
    rescue: RescueConfig = RescueConfig()
    on_nonfinite: Literal["stop", "skip", "rescue"] = "rescue"
    """A loss or gradient that is not finite: end the run before the step, skip the step and count it,
    or go back as on a reward cliff, if the governor may and there is a state to go back to (else end).
    Observations and rewards that are not finite always end the run."""
