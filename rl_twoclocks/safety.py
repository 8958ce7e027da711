"""The table of safe hyperparameters, the rules across fields, and the numbers derived from both.

Source of the table: the two-clocks write-up that this project digests (docs/clocks.md). The cap of
the clock ratio is firm; the bands of B and U only warn, since some of their corners break the cap.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_twoclocks.config import AlgoConfig, ClocksConfig, CollectConfig, Config, ConfigError
from rl_twoclocks.diagnostics.limits import limits
from rl_twoclocks.optim import check_optimizer


@dataclass(frozen=True)
class SafeRow:
    """One family's row: bands of B and U in frames, the cap of B / U, and what must also hold."""

    batch_size: tuple[int, int]
    update_frequency: tuple[int, int]
    ratio_cap: float
    also: str


SAFE_TABLE = {
    "atari": SafeRow((2048, 4096), (500, 1000), 4.0, "frame_skip = 4"),
    "mujoco": SafeRow((1024, 2048), (200, 500), 5.0, "actions saturated by tanh"),
    "gazebo": SafeRow((512, 1024), (100, 250), 4.0, "physics step 0.001 s"),
    "inspection": SafeRow((256, 512), (50, 150), 3.5, "random rotation by up to 5 degrees"),
}
ATARI_FRAME_SKIP = 4
WATCH_RATIO, DANGER_RATIO = 10.0, 50.0
"""Clock ratios from which a run is to be watched, and from which failure is expected."""
SAFE_PASSES = 3
"""At most this many passes over the window per version, by the write-up's rule."""
MAX_REUSE = 12.0
"""Warn above this many uses of a frame (clock ratio x passes); classic PPO has 10."""


def ratio_cap(family: str) -> float:
    """The cap of B / U: of the family's row, or where watching begins."""
    return SAFE_TABLE[family].ratio_cap if family in SAFE_TABLE else WATCH_RATIO


@dataclass(frozen=True)
class Derived:
    """Numbers that follow from a configuration, computed once and printed at start."""

    clock_ratio: float
    zone: str
    reuse: float
    rounds: int
    frames: int
    """Frames that the run really collects: whole rollouts within the budget."""
    minibatches: int
    """Optimizer steps per pass over a full window."""
    update_steps: int
    """Optimizer steps of the whole run, if nothing stops a round."""
    steps_per_env: int
    """Length T of a rollout in one environment."""
    notes: tuple[str, ...]
    """What was adjusted or lies outside the table, in plain words."""

    def lines(self, config: Config) -> list[str]:
        """Say it for a person, one line per fact."""
        c = config.clocks
        budget = f"{config.total_frames:,} frames asked, {self.rounds:,} rounds = {self.frames:,}"
        first = " (none in round 1, which calibrates)" if config.normalize.calibrates else ""
        return [
            f"clocks    B {c.batch_size:,} / U {c.update_frequency:,} = ratio {self.clock_ratio:.3g}"
            f" ({self.zone}), {c.update_epochs} passes, reuse {self.reuse:.3g}",
            f"rollout   {config.num_envs} environments x {self.steps_per_env} decisions",
            f"budget    {budget}; {self.update_steps:,} optimizer steps of {c.minibatch_size} frames"
            f"{first}",
            *[f"note      {note}" for note in self.notes],
        ]


def zone(ratio: float) -> str:
    """Name the zone of a clock ratio: safe, watch or danger."""
    return "safe" if ratio < WATCH_RATIO else "watch" if ratio < DANGER_RATIO else "danger"


def settle(config: Config) -> tuple[Config, Derived]:
    """Apply the rules across fields; return the configuration that will run and its numbers.

    Raises:
        ConfigError: something contradicts something, or `clocks.ratio.mode=error` and the ratio is
            above the cap.
    """
    notes: list[str] = []
    _check(config)
    clocks = _check_ratio(config, notes)
    config = config.model_copy(update={"clocks": clocks})
    config = _check_frame_skip(config, notes)
    _check_row(config, notes)
    _check_task(config)
    config = _check_physics(config, notes)
    _check_shapes(config)
    _check_workers(config)
    config = _share_slots(config, notes)
    _idle_keys(config, notes)
    _note_drops(config, notes)
    config = _blind_governor(config, notes)
    check_optimizer(config.optim)
    ratio = clocks.batch_size / clocks.update_frequency
    rounds = config.total_frames // clocks.update_frequency
    frames = clocks.sample or clocks.batch_size
    minibatches = -(-frames // clocks.minibatch_size)
    calibrating = int(config.normalize.calibrates)
    if rounds * clocks.update_frequency < config.total_frames:
        left = config.total_frames - rounds * clocks.update_frequency
        notes.append(
            f"total_frames is no multiple of U: the last {left:,} frames are not collected"
        )
    waiting = clocks.lag if clocks.lag_mode == "queue" else 0
    if waiting and waiting + int(config.normalize.calibrates) >= rounds:
        least = (waiting + int(config.normalize.calibrates) + 1) * clocks.update_frequency
        raise ConfigError(
            f"total_frames={config.total_frames} are {rounds:,} rollouts, and clocks.lag={waiting} "
            f"keeps as many waiting: none would be learnt from. Write total_frames={least} or more"
        )
    if waiting:
        notes.append(
            f"the last {waiting} of {rounds:,} rollouts still wait in the queue of clocks.lag when the "
            "budget is used up: they are not learnt from"
        )
    reuse = frames / clocks.update_frequency * clocks.update_epochs
    if reuse > MAX_REUSE:
        notes.append(
            f"reuse {reuse:.3g} is above {MAX_REUSE:.3g}: expect overfitting "
            "to old data; lower clocks.update_epochs"
        )
    steps = max(rounds - waiting - calibrating, 0) * minibatches * clocks.update_epochs
    if clocks.gradient_lag >= max(steps, 1):
        raise ConfigError(
            f"clocks.gradient_lag={clocks.gradient_lag} needs more optimizer steps than the "
            f"{steps:,} of total_frames={config.total_frames}: no gradient would be old"
        )
    return config, Derived(
        clock_ratio=ratio,
        zone=zone(ratio),
        reuse=reuse,
        rounds=rounds,
        frames=rounds * clocks.update_frequency,
        minibatches=minibatches,
        update_steps=steps,
        steps_per_env=clocks.update_frequency // config.num_envs,
        notes=tuple(notes),
    )


UNCAPPED = 10.0
"""Cap of an importance weight from which on it hardly binds."""


def _check(config: Config) -> None:
    c = config.clocks
    if c.batch_size < c.update_frequency:
        raise ConfigError(
            f"clocks.batch_size={c.batch_size} is smaller than clocks.update_frequency="
            f"{c.update_frequency}: fresh frames would be dropped unseen; set both to "
            f"{c.update_frequency}"
        )
    limits(config.diagnostics.thresholds, config.diagnostics.limits)
    if c.sample is not None and not c.minibatch_size <= c.sample <= c.batch_size:
        raise ConfigError(
            f"clocks.sample={c.sample} must lie between clocks.minibatch_size={c.minibatch_size} and "
            f"clocks.batch_size={c.batch_size}"
        )
    algo = config.algo
    if c.minibatch_size == 1 and algo.normalize_advantage == "minibatch":
        raise ConfigError(
            "clocks.minibatch_size=1 leaves nothing to learn from: the advantage of a single frame, "
            "normalised within its minibatch, is 0; write algo.normalize_advantage=window"
        )
    if algo.objective == "centred" and algo.proximal == "ewma":
        raise ConfigError(
            "algo.objective=centred centres on the policy of the round's start: leave "
            "algo.proximal=ewma out"
        )
    capped = algo.max_importance_ratio < UNCAPPED or algo.importance_ratio_start is not None
    if algo.objective == "centred" and algo.importance_power > 0 and capped:
        # The expectation that is taken off knows of no cap: one that binds would leave a drift.
        raise ConfigError(
            f"algo.importance_power={algo.importance_power:g} needs weights without a cap: write "
            "algo.max_importance_ratio=100 algo.importance_ratio_start=null"
        )
    start = algo.importance_ratio_start
    if algo.objective == "centred" and start is not None and start < 1:
        # Without importance sampling the weight is 1, and so is that of what is taken off.
        raise ConfigError(
            f"algo.importance_ratio_start={start:g} would lower the weights of 1 that "
            "algo.objective=centred has: write algo.importance_ratio_start=null"
        )
    if c.minibatch_size > c.batch_size:
        raise ConfigError(
            f"clocks.minibatch_size={c.minibatch_size} is larger than the window of "
            f"clocks.batch_size={c.batch_size} frames"
        )


def oldest_policy(clocks: ClocksConfig) -> int:
    """Versions by which a policy that acts may be older than the learner's, however it is collected."""
    # A ring holds the last `lag` + 1 publications.
    publications = 1 + (clocks.lag if clocks.lag_mode == "ring" else 0)
    return clocks.publish_interval * publications - 1


def _check_workers(config: Config) -> None:
    collect, n, c = config.collect, config.num_envs, config.clocks
    if collect.backend == "native" and collect.name in ("envpool", "processes"):
        raise ConfigError(
            f"task={config.task.name} is stepped as one batch of arrays: leave "
            f"collect={collect.name} out"
        )
    if config.diagnostics.name in ("off", "minimal"):
        for key in ("publish_kl", "align_kl"):
            if getattr(c, key) is not None:
                raise ConfigError(
                    f"clocks.{key} needs a KL that diagnostics={config.diagnostics.name} does not "
                    "measure: write diagnostics=default"
                )
    if collect.mode == "sync":
        return
    if collect.device != "cpu":
        raise ConfigError(
            f"collect.device={collect.device} is for collect=sync: with collect={collect.mode} policies "
            "act on the CPU"
        )
    acted, kept = oldest_policy(c), -(-c.batch_size // c.update_frequency) - 1
    limit = collect.max_staleness
    if limit is not None and acted + kept > limit:
        raise ConfigError(
            f"clocks.publish_interval={c.publish_interval} and clocks.lag={c.lag} let policies act that "
            f"are {acted} versions old, the window keeps frames for {kept} more, and "
            f"collect.max_staleness={limit} would drop all that they collect: write "
            f"collect.max_staleness={acted + kept}"
        )
    if limit is None and collect.order == "near":
        raise ConfigError(
            "collect.max_staleness=null with collect.order=near: newer slices always come first, "
            "so that old ones would wait for ever. Write a bound, or collect.order=fifo or random"
        )
    if n % collect.workers:
        best = min(
            (d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - collect.workers)
        )
        raise ConfigError(
            f"collect.workers={collect.workers} cannot share num_envs={n} evenly: nearest is "
            f"collect.workers={best}, or num_envs={-(-n // collect.workers) * collect.workers}"
        )
    ratio = config.clocks.batch_size / config.clocks.update_frequency
    if collect.mode != "async" and ratio >= WATCH_RATIO and config.clocks.ratio.mode != "observe":
        raise ConfigError(
            f"clock ratio {ratio:.3g} with collect={collect.mode}: data from other machines is older "
            f"still. Start from a ratio below {WATCH_RATIO:.0f} that holds on one machine, or write "
            "clocks.ratio.mode=observe"
        )
    if collect.mode == "ray" and collect.when_full == "drop":
        raise ConfigError(
            "collect.when_full=drop is for queues, and Ray's actors wait for the learner: write "
            "collect.when_full=wait"
        )
    if collect.vectorization == "async":
        raise ConfigError(
            f"collect.vectorization=async makes processes inside those of collect={collect.mode}: "
            "write collect.vectorization=sync and raise collect.workers"
        )


def _share_slots(config: Config, notes: list[str]) -> Config:
    """Give every worker of the pool as many slots as the others, and two at least."""
    collect = config.collect
    slots = max(collect.slots // collect.workers, 2) * collect.workers
    if collect.mode != "async" or slots == collect.slots:
        return config
    notes.append(
        f"collect.slots={collect.slots} is shared by {collect.workers} workers, who get "
        f"{slots // collect.workers} each: {slots} slots"
    )
    return config.model_copy(update={"collect": collect.model_copy(update={"slots": slots})})


WAITING = ("workers", "slots", "order", "max_staleness", "when_full")
"""Keys of `collect` that mean nothing where nothing waits for the learner."""


def _idle_keys(config: Config, notes: list[str]) -> None:
    """Say what was set and does nothing."""
    collect, shipped = config.collect, CollectConfig()
    if collect.mode == "sync":
        for key in WAITING:
            if (value := getattr(collect, key)) != getattr(shipped, key):
                told = "null" if value is None else value
                notes.append(
                    f"collect.{key}={told} does nothing with collect={collect.name}: it is for async, "
                    "redis and ray"
                )
    if config.clocks.lag_mode == "ring" and not config.clocks.lag:
        notes.append("clocks.lag_mode=ring does nothing without clocks.lag")
    _idle_algo_keys(config.algo, notes)
    c = config.clocks
    fresh = collect.mode == "sync" and c.publish_interval == 1 and not c.lag
    if fresh and c.batch_size == c.update_frequency:
        for key in ("publish_kl", "align_kl"):
            if (value := getattr(c, key)) is not None:
                notes.append(
                    f"clocks.{key}={value:g} does nothing here: every round learns from the newest "
                    "policy's data as it is"
                )


def _idle_algo_keys(algo: AlgoConfig, notes: list[str]) -> None:
    """Say which parts of the objective were set and do nothing with the others."""
    behaviour = algo.objective in ("clipped", "vaco")  # ratios are those to the behaviour policy
    unweighted = algo.objective == "clipped" or (
        algo.objective == "centred" and algo.importance_power == 0
    )
    idle = {
        "importance_power": algo.objective != "centred",
        "rho_clip": algo.advantage != "vtrace",
        "c_clip": algo.advantage != "vtrace",
        "max_importance_ratio": unweighted,
        "importance_ratio_start": unweighted,
        "proximal": behaviour,
        "proximal_decay": behaviour or algo.proximal != "ewma",
    }
    shipped = AlgoConfig()
    for key, does_nothing in idle.items():
        if does_nothing and (value := getattr(algo, key)) != getattr(shipped, key):
            notes.append(
                f"algo.{key}={value} does nothing with algo.objective={algo.objective} "
                f"algo.advantage={algo.advantage} algo.proximal={algo.proximal}"
            )


def _note_drops(config: Config, notes: list[str]) -> None:
    """Say where frames are dropped as a rule: they use up the budget like others."""
    collect = config.collect
    if collect.mode == "sync":
        return
    if collect.when_full == "drop":
        notes.append(
            "collect.when_full=drop: what a slower learner leaves is dropped, and counts in total_frames"
        )
    if collect.max_staleness == 0:
        notes.append(
            "collect.max_staleness=0 drops all that was begun before the newest policy, and it counts "
            "in total_frames: collect.max_staleness=1 keeps it, collect=sync waits for the policy"
        )


def _blind_governor(config: Config, notes: list[str]) -> Config:
    """Switch the governor off where nothing is measured that it could decide by."""
    cures, measured = config.interventions, config.diagnostics.name
    if cures.governor == "off" or measured in ("default", "full"):
        return config
    notes.append(f"diagnostics={measured} measures too little to decide by: the governor is off")
    return config.model_copy(update={"interventions": cures.model_copy(update={"governor": "off"})})


def _check_ratio(config: Config, notes: list[str]) -> ClocksConfig:
    clocks, row = config.clocks, SAFE_TABLE.get(config.task.family)
    cap = ratio_cap(config.task.family)
    ratio = clocks.batch_size / clocks.update_frequency
    if ratio <= cap:
        return clocks
    where = f"the {config.task.family} row of the safe table" if row else "the safe zone"
    text = f"clock ratio {ratio:.3g} (B {clocks.batch_size} / U {clocks.update_frequency}) is above"
    text += f" {cap:.3g}, the cap of {where}"
    mode = clocks.ratio.mode
    if mode == "error":
        raise ConfigError(
            f"{text}: lower clocks.batch_size to {int(cap * clocks.update_frequency)}, or raise "
            f"clocks.update_frequency to {-(-clocks.batch_size // cap):.0f}"
        )
    if mode == "observe":
        return clocks
    if mode == "warn":
        notes.append(f"{text}; clocks.ratio.mode=enforce would adjust it")
        return clocks
    return _enforce(config, cap, text, notes)


def _enforce(config: Config, cap: float, text: str, notes: list[str]) -> ClocksConfig:
    """Lower B towards its band's floor first (drop the oldest frames), then raise U."""
    clocks, row, n = config.clocks, SAFE_TABLE.get(config.task.family), unit(config)
    floor = min(row.batch_size[0], clocks.batch_size) if row else clocks.update_frequency
    wanted = int(cap * clocks.update_frequency)
    floor = -(-max(floor, clocks.minibatch_size) // n) * n
    batch = max(wanted // n * n, floor)
    frequency = clocks.update_frequency
    if batch / frequency > cap:
        frequency = int(-(-batch // cap))
        frequency = -(-frequency // n) * n
    batch = max(batch, frequency)
    notes.append(f"{text}; enforced: B {batch} / U {frequency} = {batch / frequency:.3g}")
    return clocks.model_copy(update={"batch_size": batch, "update_frequency": frequency})


def _check_frame_skip(config: Config, notes: list[str]) -> Config:
    """Hold an Atari game to its row's frame skip, as `clocks.ratio.mode` says."""
    task, mode = config.task, config.clocks.ratio.mode
    if task.family != "atari" or task.frame_skip == ATARI_FRAME_SKIP or mode == "observe":
        return config
    text = f"task.frame_skip={task.frame_skip}: the atari row of the safe table asks for "
    text += SAFE_TABLE["atari"].also
    if mode == "error":
        raise ConfigError(f"{text}: write task.frame_skip={ATARI_FRAME_SKIP}")
    notes.append(f"{text}; {'enforced' if mode == 'enforce' else 'mode enforce would set it'}")
    if mode == "warn":
        return config
    task = task.model_copy(update={"frame_skip": ATARI_FRAME_SKIP})
    return config.model_copy(update={"task": task})


def _check_row(config: Config, notes: list[str]) -> None:
    row, c = SAFE_TABLE.get(config.task.family), config.clocks
    if row is None or c.ratio.mode == "observe" or c.batch_size == c.update_frequency:
        # B = U is classic PPO: the lowest ratio of all, whatever the bands say.
        return
    for key, value, (low, high) in (
        ("batch_size", c.batch_size, row.batch_size),
        ("update_frequency", c.update_frequency, row.update_frequency),
    ):
        if not low <= value <= high:
            notes.append(
                f"clocks.{key}={value} is outside the {config.task.family} band {low}-{high}"
            )
    if c.update_epochs > SAFE_PASSES:
        notes.append(f"clocks.update_epochs={c.update_epochs} is above {SAFE_PASSES}")
    if config.task.family == "mujoco" and config.model.squash != "tanh":
        notes.append(f"the mujoco row asks for {row.also}: model.squash={config.model.squash}")


def _check_task(config: Config) -> None:
    """Refuse what is of other tasks: a world of one's own, or a game.

    Raises:
        ConfigError: names the task that it is of.
    """
    task = config.task
    for name in ("world", "joints", "rules"):
        if getattr(task, name) is not None and task.env_id != "rl_twoclocks/Gazebo-v0":
            raise ConfigError(f"task.{name}: task={task.name} has its own; write task=gazebo")
    if task.game is not None and task.family != "atari":
        raise ConfigError(f"task.game: task={task.name} has no games; write task=atari")


def _check_physics(config: Config, notes: list[str]) -> Config:
    """Hold a Gazebo task to the physics step of its row; another one in the world file is replaced.

    Raises:
        ConfigError: `clocks.ratio.mode=error` and another step, or a world that cannot be read.
    """
    task, mode = config.task, config.clocks.ratio.mode
    if task.family != "gazebo" or mode == "observe":
        return config
    from rl_twoclocks.worlds.gazebo.sdf import STEP, WorldFile

    asked = task.kwargs.get("physics_step", STEP)
    if asked != STEP:
        text = (
            f"task.kwargs.physics_step={asked}: the gazebo row asks for {SAFE_TABLE['gazebo'].also}"
        )
        if mode == "error":
            raise ConfigError(f"{text}; for longer decisions raise task.frame_skip")
        if mode == "enforce":
            kwargs = task.kwargs | {"physics_step": STEP}
            config = config.model_copy(update={"task": task.model_copy(update={"kwargs": kwargs})})
        notes.append(f"{text}{'; enforced' if mode == 'enforce' else ''}")
    if task.world is not None:
        try:
            step = WorldFile.read(task.world).step
        except ValueError as error:
            raise ConfigError(f"task.{error}") from error
        used = config.task.kwargs.get("physics_step", STEP)
        if step != used:
            text = f"task.world={task.world} has a physics step of {step} s"
            if mode == "error":
                raise ConfigError(f"{text}: write <max_step_size>{used}</max_step_size>")
            notes.append(f"{text}: it is run at {used} s")
    return config


def unit(config: Config) -> int:
    """Frames that B and U are multiples of: one per environment, or a memory's whole sequences."""
    return config.num_envs * (config.model.sequence if config.model.memory != "none" else 1)


def _check_shapes(config: Config) -> None:
    n, length = unit(config), config.model.sequence
    what = f"num_envs={config.num_envs}"
    if config.model.memory != "none":
        what += f" x model.sequence={length}"
        if config.clocks.minibatch_size % length:
            raise ConfigError(
                f"clocks.minibatch_size={config.clocks.minibatch_size} does not hold whole sequences "
                f"of model.sequence={length}: nearest is "
                f"{-(-config.clocks.minibatch_size // length) * length}"
            )
        if config.model.convolutions:
            raise ConfigError(
                f"model.memory={config.model.memory} with model.convolutions is not supported yet: "
                "write model.memory=none or model=recurrent"
            )
        if config.clocks.sample is not None:
            raise ConfigError(
                f"clocks.sample draws single frames, and model.memory={config.model.memory} learns "
                "from sequences: write clocks.sample=null or model=mlp"
            )
    for key in ("update_frequency", "batch_size"):
        value = getattr(config.clocks, key)
        if value % n:
            low, high = value // n * n, -(-value // n) * n
            near = f"{low} or {high}" if low else str(high)
            raise ConfigError(
                f"clocks.{key}={value} is not divisible by {what}: nearest are {near}"
            )
    if config.total_frames < config.clocks.update_frequency:
        raise ConfigError(
            f"total_frames={config.total_frames} is less than one rollout of "
            f"clocks.update_frequency={config.clocks.update_frequency} frames"
        )
