"""The configuration: one schema per Hydra group, frozen and validated before any work starts.

Every field carries its meaning, its unit and what larger and smaller values do; `--help` prints the
same text. Cross-field rules and derived numbers are in `rl_twoclocks.safety`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl_twoclocks.config_base import RUN_NAME, ConfigError, Group
from rl_twoclocks.config_cures import InterventionsConfig

__all__ = [
    "AgcConfig",
    "AlgoConfig",
    "CheckpointConfig",
    "ClockRatioConfig",
    "ClocksConfig",
    "CollectConfig",
    "Config",
    "ConfigError",
    "DiagnosticsConfig",
    "EvalConfig",
    "InterventionsConfig",
    "LoggerConfig",
    "ModelConfig",
    "NormalizeConfig",
    "OptimConfig",
    "RedisConfig",
    "TaskConfig",
]


class TaskConfig(Group):
    """What is to be learned: an environment and the family of the safe table it belongs to."""

    name: str
    """Short name, used for the run directory."""
    family: Literal["mujoco", "classic", "atari", "gazebo", "inspection", "other"] = "other"
    """Row of the safe table that bounds the clocks; `classic` and `other` have no row."""
    env_id: str
    """Registered gymnasium id, e.g. `HalfCheetah-v5`."""
    import_: str | None = Field(default=None, alias="import")
    """Python module to import first, for environments that register themselves on import."""
    game: str | None = None
    """Atari: the game, e.g. `pong` or `space_invaders`; null for all else."""
    kwargs: dict[str, Any] = Field(default={})
    """Keyword arguments of `gymnasium.make`."""
    eval_kwargs: dict[str, Any] = Field(default={})
    """Those that differ in evaluations and videos, e.g. whole games where training ends with a life."""
    world: str | None = None
    """gazebo: path of an SDF world."""
    joints: list[str] | None = None
    """gazebo: joints that the actions drive, in this order."""
    rules: str | None = None
    """gazebo: import path of the class that observes and rewards, e.g. `my_package:Balance`."""
    frame_skip: int = Field(default=1, ge=1)
    """Simulator frames per agent decision; counts `simulator_frames`; changes Atari and Gazebo alone."""
    frame_stack: int = Field(default=1, ge=1)
    """Newest images [height, width] that make one observation; 1: each by itself."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Time limit in decisions; null keeps the task's own."""


class ClockRatioConfig(Group):
    """What to do with a clock ratio above the cap of the family's row."""

    mode: Literal["observe", "warn", "enforce", "error"] = "warn"
    """observe: log only; warn: say so; enforce: lower B, then raise U; error: refuse to start."""


class ClocksConfig(Group):
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
    sample: int | None = Field(default=None, ge=1)
    """Frames that a round draws from the window, uniformly, instead of using all: a replay buffer of B
    frames; null: all."""
    ratio: ClockRatioConfig = ClockRatioConfig()
    publish_interval: int = Field(default=1, ge=1)
    """Rounds between two publications. Larger: those who collect act with older policies."""
    publish_kl: float | None = Field(default=None, gt=0)
    """Publish at once when KL(behaviour || current) after a round exceeds this, in nats; null: never.
    Needs `diagnostics=default`, as `align_kl` does."""
    align_kl: float | None = Field(default=None, gt=0)
    """Beyond this KL publish, drop what waits and the window, and learn next from the newest policy's
    data only."""
    lag: int = Field(default=0, ge=0)
    """Versions of lag on purpose, for experiments."""
    lag_mode: Literal["queue", "ring"] = "queue"
    """queue: every rollout waits `lag` rounds; ring: one of the last `lag` + 1 policies acts."""
    gradient_lag: int = Field(default=0, ge=0)
    """Optimizer steps by which the parameters that gradients are taken at are old, for experiments. So
    many copies of the parameters are kept, in checkpoints too."""


class AlgoConfig(Group):
    """The objective."""

    name: str = "custom"
    """Preset name, used for the run directory."""
    objective: Literal["clipped", "decoupled", "geppo", "spo", "vaco", "centred"] = "decoupled"
    """clipped: PPO; decoupled: clip around the proximal policy; geppo: additive window around it (at
    clock ratio 1 these three are the same). spo: a parabola in place of the clip; vaco: a filter on
    total variation; centred: score centring. See docs/stale_data.md."""
    advantage: Literal["gae", "vtrace"] = "gae"
    """vtrace: estimate for the proximal policy, the one at the round's start, by importance weights
    along the trajectory."""
    rho_clip: float = Field(default=1.0, gt=0)
    """vtrace: cap of a frame's own weight in value targets. Smaller: nearer the behaviour policy's."""
    c_clip: float = Field(default=1.0, gt=0)
    """vtrace: cap of the weights along the trajectory. Smaller: less variance, slower correction."""
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
    """Cap of the importance weight proximal/behaviour (vaco: current/behaviour)."""
    importance_ratio_start: float | None = Field(default=None, gt=0)
    """Let that cap grow linearly from this to `max_importance_ratio` at `optim.anneal_frames`."""
    importance_power: float = Field(default=0.0, ge=0, le=1)
    """centred: power of the importance weight; 0: centring alone, 1: full importance sampling."""
    ess_base: float | None = Field(default=None, gt=0, le=1)
    """Scale every step by sqrt(ESS / this) where the effective sample size is below it; null: off."""
    proximal: Literal["round", "ewma"] = "round"
    """Centre of the trust region. round: the policy at the round's start; ewma: a moving average of
    the weights over optimizer steps (Hilton et al. 2022), for clock ratios above 1."""
    proximal_decay: float | None = Field(default=None, ge=0, lt=1)
    """ewma: decay per optimizer step; the centre lags 1 / (1 - decay) - 1 steps. Larger: older. null:
    half a round's steps, as old as `round`'s centre is on average."""


class AgcConfig(Group):
    """Adaptive gradient clipping (Brock et al. 2021), unit-wise; heads, log-std, biases excluded."""

    enabled: bool = False
    """Clip each unit before the global norm is clipped."""
    clipping: float = Field(default=0.1, gt=0)
    """lambda: largest gradient norm of a unit relative to its weight norm."""
    eps: float = Field(default=1e-3, gt=0)
    """Floor of the weight norm."""


class OptimConfig(Group):
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
    kwargs: dict[str, Any] = Field(default={})
    """Further keyword arguments of the optimizer, e.g. `{eps: 1e-5}`."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Global gradient norm above which gradients are scaled down; null: off."""
    agc: AgcConfig = AgcConfig()


class ModelConfig(Group):
    """Actor and critic networks."""

    name: str = "mlp"
    """Preset name, used for the run directory."""
    convolutions: list[list[int]] = Field(default=[])
    """Channels, kernel and stride of every convolution, for images of bytes. Actor and critic then
    share all but their last layers. Empty: no images."""
    hidden: list[int] = Field(default=[64, 64])
    """Units per hidden layer, for the actor and the critic each (shared after convolutions)."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Nonlinearity of the hidden layers."""
    squash: Literal["tanh", "clip"] = "tanh"
    """How a Gaussian action meets the bounds: saturated by tanh, or cut off."""
    log_std_init: float = -0.5
    """Initial log standard deviation, before squashing."""
    actor_gain: float = Field(default=0.01, gt=0)
    """Orthogonal gain of the actor's last layer. Larger: a more decided first policy."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """A recurrent cell before actor and critic, for tasks where one observation does not say all."""
    memory_units: int = Field(default=64, ge=1)
    """Units of the cell. Larger: remembers more, slower."""
    sequence: int = Field(default=16, ge=1)
    """Decisions that gradients run back through a cell. Larger: longer dependences, slower updates."""


class NormalizeConfig(Group):
    """Running statistics; they change only when a policy version is published."""

    observation: bool = True
    """Bring observations to mean 0 and deviation 1."""
    observation_clip: float = Field(default=10.0, gt=0)
    """Normalised observations are cut to plus or minus this many deviations."""
    calibrate: bool = True
    """Take no step on the first rollout: it only estimates the statistics, and leaves the window."""
    reward: Literal["return", "constant", "sign", "none"] = "return"
    """return: divide by the running deviation of the discounted return; constant: times
    `reward_scale`; sign: -1, 0 or 1; none. Reported returns are never scaled."""
    reward_scale: float = Field(default=0.1, gt=0)
    """Factor of mode constant."""
    reward_clip: float = Field(default=10.0, gt=0)
    """Scaled rewards are cut to plus or minus this (mode return only)."""

    @property
    def calibrates(self) -> bool:
        """Whether the first rollout only estimates statistics."""
        return self.calibrate and (self.observation or self.reward == "return")


class RedisConfig(Group):
    """The queue between generators and the learner."""

    url: str | None = None
    """redis://[user:password@]host:port[/database], or rediss:// for TLS; null: the environment
    variable RL_TWOCLOCKS_REDIS_URL, where a password is not seen by others, else redis://127.0.0.1:6379."""
    run: str | None = Field(default=None, pattern=RUN_NAME)
    """Name under which generators find the run, of letters, digits and `_.-`; null: follows from the run
    directory."""
    spawn: bool = True
    """Start `collect.workers` generators on this machine; false: they are started elsewhere."""


class CollectConfig(Group):
    """Where frames come from."""

    name: str = "sync"
    """Preset name."""
    mode: Literal["sync", "async", "redis", "ray"] = "sync"
    """sync: rollout and update take turns in this process; async: worker processes collect while the
    learner learns; redis: generators anywhere, behind a Redis server; ray: actors on a Ray cluster."""
    workers: int = Field(default=1, ge=1)
    """async, redis, ray: slices per rollout, and worker processes or actors; they share `num_envs` among
    them. More: more cores at work."""
    slots: int = Field(default=4, ge=2)
    """Slices that can wait for the learner, over all workers, at least two each. More: older data."""
    order: Literal["near", "random", "fifo"] = "near"
    """Which waiting slices are learnt from first: newest versions, any, or the oldest."""
    max_staleness: int | None = Field(default=8, ge=0)
    """Versions by which a frame may be older than the learner, for as long as it stays in the window,
    beside `clocks.lag`; slices that would be older are dropped and counted."""
    when_full: Literal["wait", "drop"] = "wait"
    """What a worker does when its slots are full: wait for the learner, or drop its oldest slice."""
    max_restarts: int = Field(default=10, ge=0)
    """Dead workers that are started again in one session; then it ends."""
    patience: float = Field(default=300.0, gt=0)
    """async, redis, ray: seconds after which who gives nothing is replaced; redis, ray: also seconds
    without any slice, or a server, after which the run ends."""
    ray_address: str | None = None
    """ray: address of the cluster, `auto` for the one this machine belongs to; null: start one here."""
    redis: RedisConfig = RedisConfig()
    backend: Literal["gymnasium", "envpool", "native"] = "gymnasium"
    """gymnasium's vector environments, envpool's C++ ones where it has the task, or the project's own
    worlds as one batch of arrays."""
    vectorization: Literal["sync", "async"] = "sync"
    """gymnasium backend: environments in this process, or one process each."""
    device: str = "cpu"
    """Device of the behaviour policy; small networks act faster on the CPU."""
    reset_each_rollout: bool = False
    """Reset every environment at the start of each rollout; the open episodes are cut there."""
    split_trajs: bool = False
    """Let trajectories end with the rollout, as TorchRL's `split_trajs` does: advantages are cut
    there, with the next state's value, instead of running on through the window."""


class DiagnosticsConfig(Group):
    """What is measured each round. Nothing here changes training."""

    name: Literal["off", "minimal", "default", "full"] = "default"
    """off: only what the optimizer step yields anyway (losses, gradient norms per layer); minimal:
    also the clocks and the first ratio; default: all signs, the costly ones every `every` rounds;
    full: all signs in every round, and by pass."""
    every: int = Field(default=10, ge=1)
    """Rounds between two measurements of gradient covariance, plasticity and the device's use."""
    features: Literal["observation", "joint"] = "observation"
    """What the rollout entropy is taken of: observations, or observations and actions."""
    thresholds: Literal["calibrated", "seed"] = "calibrated"
    """Levels of the alarms: calibrated on real runs (docs/signs.md), or the write-ups' own numbers."""
    limits: dict[str, float] = Field(default={})
    """Single levels to override, by the names in `rl_twoclocks.diagnostics.limits`."""
    pictures: bool = True
    """Draw entropy map, reward variance profile and clocks into the run directory at the end."""


class LoggerConfig(Group):
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
    tags: list[str] = Field(default=[])
    """W&B tags."""
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online if an API key is at hand, otherwise offline."""
    watch: bool = False
    """wandb.watch(log="all"): histograms of weights and gradients (slower)."""
    watch_freq: int = Field(default=1000, ge=1)
    """Optimizer steps between two histograms, rounded up to whole rounds."""
    sync_tensorboard: bool = False
    """Let W&B read the TensorBoard files instead (needs `tensorboard`)."""


class CheckpointConfig(Group):
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


class EvalConfig(Group):
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
    changed: dict[str, Any] = Field(default={})
    """Keyword arguments of the task that differ in a second evaluation, e.g.
    `{reset_noise_scale: 0.3}`: does the policy hold where conditions are not those of training?"""


class Config(Group):
    """A whole run."""

    task: TaskConfig
    seed: int = Field(default=1, ge=0)
    """All random streams follow from it."""
    total_frames: int = Field(ge=1)
    """Budget in agent decisions, over all environments. Never exceeded, but by frames that were dropped
    where others collect; that is said."""
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
