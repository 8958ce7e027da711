"""`sweep=optuna`: search hyperparameters, each trial a run of its own process, pruned while it trains.

The first trial is the configuration as it stands, so that the study holds what its best is compared
with. The study is a journal in the sweep's directory: the same command goes on with it. Finished trials
are not trained again; broken-off ones go on from their checkpoints.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml

from rl_twoclocks.cli import NOT_FINITE, stoppable
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.config_commands import AxisConfig, SweepConfig
from rl_twoclocks.nearest import there_are
from rl_twoclocks.rundir import essence, held, in_use, plain

if TYPE_CHECKING:
    import optuna

POLL = 0.5
"""Seconds between two looks at a trial's evaluations."""
EVALUATIONS = 10
"""Evaluations of a trial, from which it may be pruned."""
OURS = ("run_dir", "logger", "eval.every_frames")
"""What the search itself sets in every trial."""


def run_sweep(name: str, overrides: list[str]) -> int:
    """Run the sweep `configs/sweep/<name>.yaml` on top of overrides; return an exit code.

    Overrides that start with `sweep.` change the sweep itself.

    Raises:
        ConfigError: the sweep or an override is wrong, or Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("sweep=optuna needs Optuna: pip install '.[sweep]'") from None
    settings = load(name, [o for o in overrides if o.startswith("sweep.")])
    words = [o for o in overrides if not o.startswith("sweep.")]
    if any(word in ("-m", "--multirun") for word in words):
        raise ConfigError("a search cannot be combined with -m: give the seed as sweep.seed")
    if any(word.startswith("seed=") for word in words):
        raise ConfigError("the seed of a search is sweep.seed, not seed")
    given = {word.lstrip("+~").partition("=")[0] for word in words}
    if fixed := sorted(given & settings.space.keys()):
        print(f"fixed       {', '.join(fixed)}: given on the command line, not searched")
    space = {key: axis for key, axis in settings.space.items() if key not in given}
    settings = settings.model_copy(update={"space": space})
    config = check(settings, words)
    directory = place(settings, config)
    # Trials that fail or are stopped are told in our own words.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with held(directory, "searching", "sweep.directory"):
        return _search(settings, words, directory, config.total_frames)


def _search(settings: SweepConfig, words: list[str], directory: Path, total: int) -> int:
    """Go on with the study of a directory until it has its trials; return an exit code."""
    import optuna

    study = optuna.create_study(
        study_name="sweep",
        storage=_storage(directory),
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(
            settings.startup_trials, n_warmup_steps=EVALUATIONS // 3
        ),
    )
    # A stream of its own for every sitting: a study that goes on does not draw its first points anew.
    study.sampler = optuna.samplers.TPESampler(
        seed=settings.seed + len(study.trials), n_startup_trials=settings.startup_trials
    )
    done = len([t for t in study.trials if _counts(t)])
    if not study.trials:
        study.enqueue_trial({}, user_attrs={"as_configured": True})
    _take_up(study, directory)
    print(f"sweep       {directory}: {done} of {settings.trials} trials done before", flush=True)
    with stoppable() as stop:
        try:
            study.optimize(
                lambda trial: _trial(trial, settings, words, directory, total, stop),
                n_trials=max(0, settings.trials - done),
                n_jobs=settings.jobs,
                catch=(TrialFailed,),
            )
        except KeyboardInterrupt as error:
            print("\nstopped; the same command goes on with the study", file=sys.stderr)
            return 128 + int(error.args[0] if error.args else signal.SIGINT)
    return _summary(study, words, directory, total)


def _take_up(study: optuna.Study, directory: Path) -> None:
    """Queue the trials that an earlier sitting left unfinished: the same points, their own folders.

    Raises:
        ConfigError: one of them is training still, on its own.
    """
    from optuna.trial import TrialState

    # By folder: a trial that was taken up is another trial of the study, in the same folder.
    latest = {_folder(trial): trial for trial in study.trials}
    for folder in latest:
        if (directory / folder).is_dir() and in_use(directory / folder):
            raise ConfigError(
                f"a trial of an earlier sitting is training in {directory / folder} still: "
                "wait until it has ended, or end it"
            )
    for folder, trial in latest.items():
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)
        if not _counts(trial) and trial.state != TrialState.WAITING:
            told = {"folder": folder, "as_configured": trial.user_attrs.get("as_configured", False)}
            study.enqueue_trial(trial.params, user_attrs=told)


def _folder(trial: optuna.Trial | optuna.trial.FrozenTrial) -> str:
    return trial.user_attrs.get("folder", f"trial{trial.number}")


def _counts(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial is over; one that failed or was interrupted is made again in the next sitting."""
    from optuna.trial import TrialState

    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


class TrialFailed(RuntimeError):
    """A trial's run ended with an error; the sweep goes on."""


def load(name: str, overrides: list[str]) -> SweepConfig:
    """Load a sweep and apply its own overrides (`sweep.trials=10`).

    Raises:
        ConfigError: there is no such sweep, or a value is wrong.
    """
    from omegaconf import OmegaConf

    from rl_twoclocks.configure import config_dir, validate

    path = config_dir() / "sweep" / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ConfigError(f"sweep={name}: {there_are(name, known)}")
    dotlist = OmegaConf.from_dotlist([o.removeprefix("sweep.") for o in overrides])
    own: dict[str, Any] = OmegaConf.to_container(dotlist)  # type: ignore[assignment]
    try:
        values = {"space": {}} | yaml.safe_load(path.read_text())
    except (yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"{path} is no YAML of keys and values: {error}") from error
    space = own.pop("space", {})
    if not isinstance(space, dict):
        raise ConfigError(f"sweep.space={space}: write sweep.space.<key>.choices=[...]")
    values["space"] |= _axes(space)
    try:
        return validate(values | own, SweepConfig)
    except ConfigError as error:
        raise ConfigError(f"sweep={name}: {error}") from error


def _axes(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Axes by dotted key, from the nested form that the command line gives."""
    if nested and set(nested) <= AxisConfig.model_fields.keys():
        return {prefix.rstrip("."): nested}
    axes: dict[str, Any] = {}
    for key, value in nested.items():
        if not isinstance(value, dict):
            raise ConfigError(
                f"sweep.space.{prefix}{key}={value}: an axis needs choices, or low and high"
            )
        axes |= _axes(value, f"{prefix}{key}.")
    return axes


def check(settings: SweepConfig, words: list[str]) -> Config:
    """Check every key of the space and the configuration itself; return that.

    Raises:
        ConfigError: a key or value is wrong, or is the search's own business.
    """
    from rl_twoclocks.configure import assign, compose
    from rl_twoclocks.safety import settle

    keys = [word.partition("=")[0] for word in words] + list(settings.space)
    if own := [key for key in keys if key in (*OURS, "seed")]:
        raise ConfigError(f"{own[0]} is set by the search for every trial: leave it out")
    config, _ = settle(compose(words))
    if not config.eval.enabled:
        raise ConfigError("a search goes by evaluations: leave eval=off out")
    for key, axis in settings.space.items():
        # Every end and every choice must be a value that the key can take.
        for value in axis.choices if axis.choices is not None else (axis.low, axis.high):
            compose([*words, assign(key, value)])
    return config


def place(settings: SweepConfig, config: Config) -> Path:
    """The sweep's directory: the same for the same experiment, budget, evaluations and space."""
    values = plain(config)
    core = essence(values) | {"eval": values["eval"], "total_frames": config.total_frames}
    # Trials have the search's own.
    core.pop("seed")
    core["eval"] = {k: v for k, v in core["eval"].items() if k not in ("every_frames", "num_envs")}
    text = json.dumps([core, settings.model_dump(include={"space", "seed"})], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Path(settings.directory).expanduser().absolute() / f"{config.task.name}-{digest}"


def _storage(directory: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(directory / "journal.log")))


def _trial(
    trial: optuna.Trial,
    settings: SweepConfig,
    words: list[str],
    directory: Path,
    total: int,
    stop: threading.Event,
) -> float:
    """Train one point in a process of its own; report its evaluations, stop it if it lags."""
    import optuna

    from rl_twoclocks.batch import running
    from rl_twoclocks.configure import assign
    from rl_twoclocks.record import read_metrics

    point = [] if trial.user_attrs.get("as_configured") else _suggest(trial, settings)
    run_dir, every = directory / _folder(trial), _interval(total)
    command = [*words, *point, f"seed={settings.seed}", assign("run_dir", run_dir), "logger=jsonl"]
    command += ["logger.display=none", f"eval.every_frames={every}"]
    alike = next((t for t in trial.study.trials if _same_point(t, trial)), None)
    if alike is not None:
        pruned = alike.state == optuna.trial.TrialState.PRUNED
        told = "given up" if pruned else f"{alike.value:.4g}"
        print(f"trial {trial.number:<4}  is trial {alike.number} again: {told}", flush=True)
        if pruned:
            raise optuna.TrialPruned
        assert alike.value is not None
        return alike.value
    run_dir.mkdir(parents=True, exist_ok=True)
    what = " ".join(point) or "as configured"
    print(f"trial {trial.number:<4}  begins in {run_dir.name}: {what}", flush=True)
    seen, log = 0, directory / f"{run_dir.name}.log"
    with running(command, log) as process:
        while process.poll() is None:
            if stop.wait(POLL):
                raise KeyboardInterrupt
            rows = read_metrics(run_dir / "metrics.jsonl")
            points = [(r["frames"], r["eval/return_mean"]) for r in rows if _evaluated(r)]
            for frames, value in points:
                # By number: rounds of another length end at other frames, and only values of one
                # step are compared.
                if frames // every > seen:
                    seen = frames // every
                    trial.report(value, seen)
            if seen and len(points) < EVALUATIONS and trial.should_prune():
                raise optuna.TrialPruned
    if process.returncode == NOT_FINITE:
        # Not a failure but a result, the worst one: the sampler learns to keep away from it.
        print(
            f"trial {trial.number:<4}  diverged: {' '.join(point) or 'as configured'}", flush=True
        )
        raise optuna.TrialPruned
    result = run_dir / "result.json"
    if process.returncode or not result.is_file():
        said = log.read_text().strip().splitlines()
        why = said[-1] if said else f"exit code {process.returncode}"
        if process.returncode < 0:
            why = f"killed by {signal.Signals(-process.returncode).name}"
        trial.set_user_attr("why", why)
        print(f"trial {trial.number:<4}  failed: {why}", flush=True)
        raise TrialFailed(why)
    value = json.loads(result.read_text())["return_mean"]
    print(f"trial {trial.number:<4}  {value:.4g}  {' '.join(point) or 'as configured'}", flush=True)
    return value


def _same_point(other: optuna.trial.FrozenTrial, trial: optuna.Trial) -> bool:
    """Whether another trial is over at this trial's point: with one seed it would end alike."""
    first = bool(trial.user_attrs.get("as_configured"))
    same = other.params == trial.params
    same &= first == bool(other.user_attrs.get("as_configured")) or not trial.params
    return _counts(other) and other.number != trial.number and same


def _interval(total: int) -> int:
    """Frames between two evaluations of a trial."""
    return max(1, total // EVALUATIONS)


def _evaluated(row: dict[str, Any]) -> bool:
    return row.get("eval/return_mean") is not None


def _suggest(trial: optuna.Trial, settings: SweepConfig) -> list[str]:
    from rl_twoclocks.configure import assign, schema_keys

    fields = dict(schema_keys())
    words = []
    for key, axis in settings.space.items():
        if axis.choices is not None:
            value: Any = trial.suggest_categorical(key, axis.choices)
        else:
            assert axis.low is not None
            assert axis.high is not None
            # Keys of a free form (`task.kwargs`) are not in the schema.
            if key in fields and _takes_integers(fields[key].annotation):
                value = trial.suggest_int(key, int(axis.low), int(axis.high), log=axis.log)
            else:
                value = trial.suggest_float(key, axis.low, axis.high, log=axis.log)
        words.append(assign(key, value))
    return words


def _takes_integers(annotation: Any) -> bool:
    """Whether a key of this type (`int`, `int | None`) takes whole numbers alone."""
    kinds = get_args(annotation) or (annotation,)
    return int in kinds and float not in kinds


def _summary(study: optuna.Study, words: list[str], directory: Path, total: int) -> int:
    from optuna.trial import TrialState

    from rl_twoclocks.configure import assign

    latest = list({_folder(trial): trial for trial in study.trials}.values())
    finished = [t for t in latest if t.state == TrialState.COMPLETE]
    failed = [t for t in latest if t.state == TrialState.FAIL]
    pruned = [t for t in latest if t.state == TrialState.PRUNED]
    with open(directory / "trials.csv", "w", newline="") as file:
        keys = sorted({key for t in latest for key in t.params})
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "folder", "state", "return_mean", *keys])
        for t in latest:
            row = [t.params.get(key, "") for key in keys]
            writer.writerow([t.number, _folder(t), t.state.name.lower(), t.value, *row])
    counts = f"{len(finished)} done, {len(pruned)} pruned, {len(failed)} failed"
    print(f"sweep       {counts} of {len(finished) + len(pruned) + len(failed)} trials")
    for t in failed:
        why = t.user_attrs.get("why")
        print(f"failed      trial {t.number}: {why}; the same command tries it again")
    if not finished:
        return 1
    best = study.best_trial
    point = [assign(key, value) for key, value in best.params.items()]
    first = next((t for t in finished if t.user_attrs.get("as_configured")), None)
    if first is not None:
        print(f"configured  {first.value:.6g}")
    print(f"best        {best.value:.6g} (trial {best.number}, in {_folder(best)})")
    # As often as the trial was evaluated: with the governor on, evaluations may order a rescue.
    best_words = [*words, *point, f"eval.every_frames={_interval(total)}"]
    print(f"command     python -m rl_twoclocks.train {shlex.join(best_words)}")
    facts = {"return_mean": best.value, "trial": best.number, "overrides": point}
    (directory / "best.yaml").write_text(yaml.safe_dump(facts))
    return 1 if failed else 0
