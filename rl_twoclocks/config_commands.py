"""The configuration of the commands beside training: evaluation, export, searches."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rl_twoclocks.config_base import RUN_NAME, Group


class EvalCommandConfig(Group):
    """The evaluation command."""

    checkpoint: str
    """A checkpoint file, or a run directory (its best checkpoint, else its newest)."""
    episodes: int = Field(default=10, ge=1)
    """Episodes for the deterministic and for the stochastic policy each."""
    num_envs: int = Field(default=10, ge=1)
    """Environments stepped together; at most `episodes` are used."""
    seed: int | None = None
    """Seed of the episodes; null: as in the evaluations of the run itself."""
    changed: dict[str, Any] = Field(default={})
    """Keyword arguments of the task that differ from those of training."""
    video: bool = False
    """Write an MP4 of the first episode, without a display, acting as in the run's evaluations."""
    video_path: str | None = None
    """Where to; null: beside the checkpoint."""


class GeneratorCommandConfig(Group):
    """The generator command."""

    run: str = Field(pattern=RUN_NAME)
    """Name of the run: what its learner was given as `collect.redis.run`."""
    url: str | None = None
    """The Redis server of the run; null: the environment variable RL_TWOCLOCKS_REDIS_URL, where a
    password is not seen by others, or else redis://127.0.0.1:6379."""
    patience: float = Field(default=60.0, gt=0)
    """Seconds after which the generator ends where there is no server or no such run, or it is over."""
    parent: int | None = None
    """Process without which the generator ends: the learner that started it."""


class LabCommandConfig(Group):
    """The lab command."""

    scenario: str
    """A file in configs/lab, without its ending."""
    budget: Literal["smoke", "short", "full"] = "short"
    """smoke: minutes, to see that it works; short: a verdict; full: the numbers to quote."""
    jobs: int = Field(default=0, ge=0)
    """Runs at a time; 0: one per CPU core."""
    arms: list[str] | None = None
    """Only these arms, as arms=[healthy,fault,cure]; null: all. Those that are finished count too."""
    out: str | None = None
    """Folder of the runs and the page; null: lab/<scenario>-<budget>."""


class ClaimConfig(Group):
    """One further claim of a scenario: that one arm lies below another."""

    claim: str
    """What is claimed, as a sentence."""
    lower: str
    """The arm that is said to lie lower ..."""
    higher: str
    """... than this one."""
    of: Literal["score", "fall", "collapses"] = "score"
    """In what. score: of the last evaluation, relative to healthy; fall: frames at which a run
    collapsed, at most the shorter budget; collapses: share of the runs that collapsed."""


class ScenarioConfig(Group):
    """One scenario of the lab."""

    question: str
    """What is asked, as a sentence."""
    claim: str
    """What the write-ups say."""
    base: list[str]
    """Overrides that all arms share; they are the protocol."""
    rule: str
    """Which rule decides, in plain words; written before the runs."""
    reading: str = "eval/return_mean"
    """Which reading of an evaluation is scored."""
    judged_by: Literal["score", "collapses"] = "score"
    """What fault and cure are judged by: scores, or shares of the runs that collapsed."""
    random: float
    """That reading of a random policy: the zero of scores."""
    idle: float | None = None
    """That reading of a policy that stands still, where it may be higher: a healthy arm that does not
    come above it has learnt nothing."""
    arms: dict[str, list[str]]
    """The three arms that the conclusion is drawn from: healthy, fault, cure."""
    controls: dict[str, list[str]] = Field(default={})
    """Further arms: those that claims are about, and others that are only shown."""
    baselines: dict[str, str] = Field(default={})
    """Arms whose score is relative to another arm than healthy: because their task is another."""
    claims: list[ClaimConfig] = Field(default=[])
    """What is judged besides fault and cure."""
    shown: list[str] = Field(default=[])
    """Readings whose median over a run is written down with it."""
    budgets: dict[str, BudgetConfig]
    """Seeds and overrides by budget: smoke, short, full."""

    @model_validator(mode="after")
    def _complete(self) -> ScenarioConfig:
        for name, found, needed in (
            ("arms", self.arms, {"healthy", "fault", "cure"}),
            ("budgets", self.budgets, {"smoke", "short", "full"}),
        ):
            if set(found) != needed:
                raise ValueError(f"{name} must be {', '.join(sorted(needed))}")
        named = {*self.baselines, *self.baselines.values()}
        named |= {arm for claim in self.claims for arm in (claim.lower, claim.higher)}
        named |= {arm for budget in self.budgets.values() for arm in budget.arms}
        if unknown := sorted(named - {*self.arms, *self.controls}):
            raise ValueError(f"there is no arm {', '.join(unknown)}")
        return self


class BudgetConfig(Group):
    """How much a scenario may cost."""

    seeds: int = Field(ge=1)
    """Seeds per arm, counted from 501."""
    overrides: list[str]
    """Among them total_frames."""
    arms: dict[str, list[str]] = Field(default={})
    """Further overrides of single arms."""


class ExportCommandConfig(Group):
    """The export command."""

    checkpoint: str
    """A checkpoint file, or a run directory (its best checkpoint, else its newest)."""
    format: Literal["onnx", "torch", "both"] = "both"
    """What to write: ONNX, a `torch.export` program, or both."""
    out: str | None = None
    """Folder to write to; null: `export/` beside the checkpoint."""


class AxisConfig(Group):
    """One axis of a search space: choices, or a range."""

    choices: list[Any] | None = None
    """Values to choose from."""
    low: float | None = None
    """Lower end of a range."""
    high: float | None = None
    """Upper end of a range."""
    log: bool = False
    """Draw the exponent evenly instead of the value."""

    @model_validator(mode="after")
    def _one_of_both(self) -> AxisConfig:
        if (self.choices is None) == (self.low is None or self.high is None):
            raise ValueError("an axis needs either `choices`, or `low` and `high`")
        if self.choices is not None and not self.choices:
            raise ValueError("an axis needs at least one choice")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and self.low is not None and self.low <= 0:
            raise ValueError("the logarithm needs low above 0")
        return self


class SweepConfig(Group):
    """A search (`sweep=optuna`); `sweep.trials=10` and so on change it."""

    trials: int = Field(default=30, ge=1)
    """Runs in all, the configuration as it stands included."""
    jobs: int = Field(default=1, ge=1)
    """Runs at a time, one thread each."""
    seed: int = Field(default=101, ge=0)
    """Seed of every trial and of the sampler: report results on other seeds."""
    startup_trials: int = Field(default=8, ge=1)
    """Random trials before the sampler learns from them and the pruner acts."""
    directory: str = "runs/sweeps"
    """Where sweeps go."""
    space: dict[str, AxisConfig]
    """Key of the configuration: its axis."""
