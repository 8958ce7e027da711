"""The configuration: one schema per Hydra group, frozen and validated before any work starts.

Every field carries its meaning, its unit and what larger and smaller values do; `--help` prints the
same text. Cross-field rules and derived numbers are in `rl_twoclocks.safety`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ConfigError(ValueError):
    """The configuration cannot be run; the message names the key and the nearest right one."""


class _Group(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        extra="forbid",
        use_attribute_docstrings=True,
        populate_by_name=True,
        protected_namespaces=(),
    )


class TaskConfig(_Group):
    """What is to be learned: an environment and the family of the safe table it belongs to."""

    name: str
    """Short name, used for the run directory."""
    family: Literal["mujoco", "classic", "atari", "gazebo", "inspection", "other"] = "other"
    """Row of the safe table that bounds the clocks; `classic` and `other` have no row."""
    env_id: str
    """Registered gymnasium id, e.g. `HalfCheetah-v5`."""
    import_: str | None = Field(default=None, alias="import")
    """Python module to import first, for environments that register themselves on import."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments of `gymnasium.make`."""
    frame_skip: int = Field(default=1, ge=1)
    """Simulator frames per agent decision; counts `simulator_frames`, does not change the task."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Time limit in decisions; null keeps the task's own."""


class ClockRatioConfig(_Group):
    """What to do with a clock ratio above the cap of the family's row."""

    mode: Literal["observe", "warn", "enforce", "error"] = "warn"
    """observe: log only; warn: say so; enforce: lower B, then raise U; error: refuse to start."""


class ClocksConfig(_Group):
    """The two clocks: how much data a round learns from and how much of it is fresh."""

    name: str = "custom"
    """Preset name, used for the run directory."""
    batch_size: int = Field(ge=1)
    """B, frames that one round learns from (the window). Larger: older data, more reuse."""
    update_frequency: int = Field(ge=1)
    """U, fresh frames per policy version (`frames_per_batch` of the collector)."""
    update_epochs: int = Field(ge=1)
    """Passes over the window per round. Larger: more use of every frame, more policy change."""
    minibatch_size: int = Field(ge=1)
    """Frames per optimizer step. Smaller: more, noisier steps."""
    ratio: ClockRatioConfig = ClockRatioConfig()


class AlgoConfig(_Group):
    """The objective."""

    name: str = "custom"
    """Preset name, used for the run directory."""
    objective: Literal["clipped", "decoupled", "geppo"] = "decoupled"
    """clipped: PPO; decoupled: clip around the proximal policy; geppo: additive window around it.
    At clock ratio 1 all three are the same."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Smaller: less variance, more bias from the critic."""
    clip_epsilon: float = Field(default=0.2, gt=0)
    """Half-width of the trust region in ratio units."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """linear: falls to 0.001 at `optim.anneal_frames`."""
    entropy_coeff: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus. Larger: wider policy."""
    critic_coeff: float = Field(default=0.5, ge=0)
    """Weight of the critic's squared error; matters through the common gradient clipping."""
    value_clip: float | None = Field(default=None, gt=0)
    """Half-width of the value clip around the round's first value; null: none."""
    normalize_advantage: Literal["minibatch", "window", "none"] = "minibatch"
    """Over which frames advantages are brought to mean 0 and deviation 1."""
    advantage_refresh: Literal["round", "pass"] = "pass"
    """How often advantages are recomputed with the newest critic; the value drift is logged."""
    target_kl: float | None = Field(default=None, gt=0)
    """Stop the round before the first step whose minibatch has KL > 1.5 x this; null: never."""
    max_importance_ratio: float = Field(default=100.0, ge=1)
    """Cap of the importance weight proximal/behaviour."""
    proximal: Literal["round", "ewma"] = "round"
    """Centre of the trust region. round: the policy at the round's start; ewma: a moving average of
    the weights over optimizer steps (Hilton et al. 2022), for clock ratios above 1."""
    proximal_decay: float = Field(default=0.889, ge=0, lt=1)
    """ewma: decay per optimizer step; the centre lags 1 / (1 - decay) - 1 steps. Larger: older."""


class AgcConfig(_Group):
    """Adaptive gradient clipping (Brock et al. 2021), unit-wise; heads, log-std, biases excluded."""

    enabled: bool = False
    """Clip each unit before the global norm is clipped."""
    clipping: float = Field(default=0.1, gt=0)
    """lambda: largest gradient norm of a unit relative to its weight norm."""
    eps: float = Field(default=1e-3, gt=0)
    """Floor of the weight norm."""


class OptimConfig(_Group):
    """The optimizer and its gradient clipping."""

    name: str = "Adam"
    """Class name in torch.optim or torch_optimizer. Adam and AdamW run inside the fused step."""
    learning_rate: float = Field(default=3e-4, ge=0)
    """Step size of actor and critic. Larger: faster, less stable."""
    schedule: Literal["constant", "linear"] = "linear"
    """linear: falls to 0 at `anneal_frames`."""
    anneal_frames: int | None = Field(default=None, ge=1)
    """Absolute frames at which schedules end; null: `total_frames` (then extending a run on resume
    stretches the schedule: the rate at the same frame rises)."""
    kwargs: dict[str, Any] = {}
    """Further keyword arguments of the optimizer, e.g. `{eps: 1e-5}`."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Global gradient norm above which gradients are scaled down; null: off."""
    agc: AgcConfig = AgcConfig()


class ModelConfig(_Group):
    """Actor and critic networks."""

    name: str = "mlp"
    """Preset name, used for the run directory."""
    hidden: list[int] = [64, 64]
    """Units per hidden layer, for the actor and the critic each."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Nonlinearity of the hidden layers."""
    squash: Literal["tanh", "clip"] = "tanh"
    """How a Gaussian action meets the bounds: saturated by tanh, or cut off."""
    log_std_init: float = -0.5
    """Initial log standard deviation, before squashing."""
    actor_gain: float = Field(default=0.01, gt=0)
    """Orthogonal gain of the actor's last layer. Larger: a more decided first policy."""


class NormalizeConfig(_Group):
    """Running statistics; they change only when a policy version is published."""

    observation: bool = True
    """Bring observations to mean 0 and deviation 1."""
    observation_clip: float = Field(default=10.0, gt=0)
    """Normalised observations are cut to plus or minus this many deviations."""
    calibrate: bool = True
    """Take no step on the first rollout: it only estimates the statistics, and leaves the window."""
    reward: Literal["return", "constant", "none"] = "return"
    """return: divide by the running deviation of the discounted return; constant: times
    `reward_scale`; none. Reported returns are never scaled."""
    reward_scale: float = Field(default=0.1, gt=0)
    """Factor of mode constant."""
    reward_clip: float = Field(default=10.0, gt=0)
    """Scaled rewards are cut to plus or minus this (mode return only)."""


class CollectConfig(_Group):
    """Where frames come from."""

    name: str = "sync"
    """Preset name."""
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    """gymnasium's vector environments, or envpool's C++ ones where it has the task."""
    vectorization: Literal["sync", "async"] = "sync"
    """gymnasium backend: environments in this process, or one process each."""
    device: str = "cpu"
    """Device of the behaviour policy; small networks act faster on the CPU."""
    reset_each_rollout: bool = False
    """Reset every environment at the start of each rollout; the open episodes are cut there."""
    split_trajs: bool = False
    """Let trajectories end with the rollout, as TorchRL's `split_trajs` does: advantages are cut
    there, with the next state's value, instead of running on through the window."""


class DiagnosticsConfig(_Group):
    """What is measured each round. Nothing here changes training."""

    name: Literal["off", "minimal", "default", "full"] = "default"
    """off: only what the optimizer step yields anyway (losses, gradient norms per layer); minimal:
    also the clocks and the first ratio; default: all signs, the costly ones every `every` rounds;
    full: all signs in every round, by pass, with the nearest-neighbour drift."""
    every: int = Field(default=10, ge=1)
    """Rounds between two measurements of gradient covariance, plasticity and memory."""
    features: Literal["observation", "joint"] = "observation"
    """What the rollout entropy is taken of: observations, or observations and actions."""
    thresholds: Literal["calibrated", "seed"] = "calibrated"
    """Levels of the alarms: calibrated on real runs (docs/signs.md), or the write-ups' own numbers."""
    limits: dict[str, float] = {}
    """Single levels to override, by the names in `rl_twoclocks.diagnostics.limits`."""
    pictures: bool = True
    """Draw entropy map, reward variance profile and clocks into the run directory at the end."""


class TrimConfig(_Group):
    """Entropy-gated batch trimming: below the gate, a round learns from part of its window."""

    enabled: bool = True
    """Allow it."""
    fraction: float = Field(default=0.7, gt=0, le=1)
    """Share of the frames that the round uses."""
    keep: Literal["newest", "first", "rare"] = "newest"
    """Which frames stay: the newest, the oldest, or those in the least visited cells. Advantages are
    computed over the whole window first, so no trajectory is cut."""


class ReseedConfig(_Group):
    """Fresh episodes from a seeded stream when the data has lost its variety."""

    enabled: bool = True
    """Allow it."""
    noise: float = Field(default=0.01, ge=0)
    """Deviation of the noise on the next rollout's observations, in their running deviations."""
    rest: int = Field(default=10, ge=1)
    """Rounds between two reseedings."""


class StepConfig(_Group):
    """Smaller steps while the policy moves too far from its data; never above the tuned rate."""

    enabled: bool = True
    """Allow it, on an alarm."""
    always: bool = False
    """Scale steps from the first round on, alarm or not."""
    kl_target: float = Field(default=0.02, gt=0)
    """KL per minibatch to the proximal policy, in nats, that steps are scaled towards."""
    ess_base: float = Field(default=0.9, gt=0, le=1)
    """Effective sample size below which steps shrink as sqrt(ESS / base)."""
    kl_stop: float = Field(default=0.1, gt=0)
    """KL at which a round stops while this cure is on."""
    hold: int = Field(default=20, ge=1)
    """Rounds for which it stays on after the alarm ended."""


class ClipConfig(_Group):
    """A tighter bound on the gradient's norm while a layer's gradient stays high."""

    enabled: bool = True
    """Allow it."""
    factor: float = Field(default=0.5, gt=0, lt=1)
    """The bound is multiplied by this."""
    hold: int = Field(default=20, ge=1)
    """Rounds for which it stays on after the alarm ended."""


class RatioConfig(_Group):
    """Online clock-ratio enforcement: a smaller window, then more fresh frames per version."""

    enabled: bool = True
    """Allow it, when data is too old for its policy."""
    rest: int = Field(default=20, ge=1)
    """Rounds between two changes."""


class PassesConfig(_Group):
    """Fewer passes while the policy overfits to its window."""

    enabled: bool = True
    """Allow it."""
    rest: int = Field(default=10, ge=1)
    """Rounds between two changes, down or back up."""


class WidthConfig(_Group):
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


class MemoryConfig(_Group):
    """Free what can be freed when memory creeps."""

    enabled: bool = True
    """Allow it."""
    rest: int = Field(default=50, ge=1)
    """Rounds between two attempts."""


class RescueConfig(_Group):
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


class InterventionsConfig(_Group):
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
    kl_stop: bool = True
    """Honour `algo.target_kl`."""
    on_nonfinite: Literal["stop", "skip", "rescue"] = "rescue"
    """A loss or gradient that is not finite: end the run before the step, skip the step and count it,
    or go back as on a reward cliff, if the governor may and there is a state to go back to (else end).
    Observations and rewards that are not finite always end the run."""


class LoggerConfig(_Group):
    """Where metrics go. `metrics.jsonl` in the run directory is always written."""

    name: str = "wandb"
    """Preset name."""
    wandb: bool = True
    """Record to Weights & Biases."""
    tensorboard: bool = False
    """Record to TensorBoard, in the run directory."""
    log_freq: int = Field(default=1, ge=1)
    """Rounds between two records."""
    display: Literal["auto", "rich", "plain", "none"] = "auto"
    """auto: a live panel in a terminal, plain lines elsewhere."""
    project: str = "rl_twoclocks"
    """W&B project."""
    entity: str | None = None
    """W&B team or user; null: your default one."""
    group: str | None = None
    """W&B group, to gather the seeds of one experiment."""
    tags: list[str] = []
    """W&B tags."""
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online if an API key is at hand, otherwise offline."""
    watch: bool = False
    """wandb.watch(log="all"): histograms of weights and gradients (slower)."""
    watch_freq: int = Field(default=1000, ge=1)
    """Optimizer steps between two histograms, rounded up to whole rounds."""
    sync_tensorboard: bool = False
    """Let W&B read the TensorBoard files instead (needs `tensorboard`)."""


class CheckpointConfig(_Group):
    """When the run's state is saved."""

    every_frames: int | None = Field(default=None, ge=1)
    """Frames between checkpoints; null: a tenth of the run. The end and a signal always save."""
    keep_last: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay on disk."""
    save_best: bool = True
    """Keep the checkpoint with the best evaluation as `best.pt`."""
    episode_boundary: bool = False
    """Reset all environments at each checkpoint, so that a resumed run is identical even where the
    simulator's state cannot be saved."""


class EvalConfig(_Group):
    """Evaluation on environments, normaliser copy and random stream of its own."""

    every_frames: int | None = Field(default=None, ge=1)
    """Frames between evaluations; null: a tenth of the run. 0 evaluations: `eval=off`."""
    enabled: bool = True
    """Evaluate at all."""
    episodes: int = Field(default=10, ge=1)
    """Episodes per evaluation."""
    num_envs: int = Field(default=10, ge=1)
    """Environments stepped together; at most `episodes` are used."""
    deterministic: bool = True
    """Act by the mode of the distribution; false: sample."""
    seed: int | None = None
    """Seed of the evaluation episodes; null: derived from the run's seed."""


class Config(_Group):
    """A whole run."""

    task: TaskConfig
    seed: int = Field(default=1, ge=0)
    """All random streams follow from it."""
    total_frames: int = Field(ge=1)
    """Budget in agent decisions, over all environments. Never exceeded."""
    num_envs: int = Field(default=8, ge=1)
    """Environments stepped together. More: faster collection, shorter rollouts in each."""
    device: str = "auto"
    """Where learning happens: auto, cpu, cuda, cuda:1."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the learner. One is best for small networks and for several runs at once."""
    compile: bool | Literal["auto"] = "auto"
    """One compiled graph per optimizer step. auto: if the run is long enough to pay for it."""
    cuda_graphs: bool = False
    """Capture the compiled step in CUDA graphs (CUDA only)."""
    run_dir: str | None = None
    """Where results go; null: `runs/<task>/<presets>-<hash of the overrides>/seed<k>`."""
    on_existing: Literal["resume", "fail", "overwrite"] = "resume"
    """If the run directory holds a run: go on with it, refuse, or start over."""
    clocks: ClocksConfig
    algo: AlgoConfig = AlgoConfig()
    optim: OptimConfig = OptimConfig()
    model: ModelConfig = ModelConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    collect: CollectConfig = CollectConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    interventions: InterventionsConfig = InterventionsConfig()
    logger: LoggerConfig = LoggerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()


class EvalCommandConfig(_Group):
    """The evaluation command."""

    checkpoint: str
    """A checkpoint file, or a run directory (its best checkpoint, else its newest)."""
    episodes: int = Field(default=10, ge=1)
    """Episodes for the deterministic and for the stochastic policy each."""
    num_envs: int = Field(default=10, ge=1)
    """Environments stepped together; at most `episodes` are used."""
    seed: int | None = None
    """Seed of the episodes; null: as in the evaluations of the run itself."""
    video: bool = False
    """Write an MP4 of one episode of the deterministic policy, without a display."""
    video_path: str | None = None
    """Where to; null: beside the checkpoint."""


class ExportCommandConfig(_Group):
    """The export command."""

    checkpoint: str
    """A checkpoint file, or a run directory (its best checkpoint, else its newest)."""
    format: Literal["onnx", "torch", "both"] = "both"
    """What to write: ONNX, a `torch.export` program, or both."""
    out: str | None = None
    """Folder to write to; null: `export/` beside the checkpoint."""


class AxisConfig(_Group):
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


class SweepConfig(_Group):
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
