"""Everything around the rounds of one sitting: records, evaluations, checkpoints, resuming."""

from __future__ import annotations

import contextlib
import copy
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from rl_twoclocks import state
from rl_twoclocks.build import Parts, columns
from rl_twoclocks.config import Config
from rl_twoclocks.diagnose import Diagnose
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.evaluate import Evaluator, under_changed_conditions
from rl_twoclocks.learner import Round
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.record import Display, RunInfo, checkpoint, make_loggers
from rl_twoclocks.record.events import Events
from rl_twoclocks.result import Result
from rl_twoclocks.rundir import plain, run_name, write_text
from rl_twoclocks.safety import Derived, oldest_policy
from rl_twoclocks.signals import StopSignal
from rl_twoclocks.steering import Steering


class Session:
    """One sitting of a run in its directory; a context manager that always closes the records."""

    def __init__(
        self, config: Config, derived: Derived, directory: Path, resume: bool, parts: Parts
    ) -> None:
        """Load the newest checkpoint if `resume`, and open loggers and display."""
        self.config, self.derived, self.directory, self.parts = config, derived, directory, parts
        self.started = time.perf_counter()
        self.earlier_seconds = 0.0
        self.best: float | None = None
        self.last_readings: dict[str, float] = {}
        self.saved_at = -1
        saved = checkpoint.load_newest(directory) if resume else None
        unlogged: dict[str, float] = {}
        if saved is not None:
            state.check(saved)
        self.events = Events(directory, saved["clocks"]["frames"] if saved else 0)
        self.diagnose = Diagnose(config, parts)
        self.steering = Steering(config, parts, self.diagnose, self.events)
        if saved is not None:
            state.restore(parts, saved)
            self.diagnose.load_state_dict(saved["diagnose"])
            self.steering.load_state_dict(saved["steering"])
            unlogged = saved["unlogged"]
            self.best, self.earlier_seconds = saved["best"], saved["wall_seconds"]
            self.last_readings = saved["last_evaluation"]
            self.saved_at = parts.clocks.frames
            self._take_best()
        self._saved = saved
        frames = parts.clocks.frames
        self.owed = bool(saved and saved["owed"])
        """Whether an evaluation was due and a signal came first."""
        self.late: dict[str, float] = {}
        self.finished = self.over and not self.owed
        if not self.finished:
            # Of a budget that has grown since, and of a sitting that crashed.
            for name in ("result.json", "error.txt"):
                (directory / name).unlink(missing_ok=True)
        info = RunInfo(
            run_name(config),
            directory,
            plain(config) | {"derived": vars(derived)},
            frames,
            saved["loggers"] if saved else {},
        )
        self.loggers = make_loggers(config.logger, info)
        self.display = Display(config.logger.display, derived.frames, run_name(config))
        self.evaluators: dict[str, Evaluator] = {}
        self.align = bool(saved and saved["align"])
        self.restarts = 0
        self.watched: ActorCritic | None = None
        self.unlogged: dict[str, float] = unlogged
        tenth = max(derived.frames // 10, 1)
        self.eval_every = config.eval.every_frames or tenth
        self.save_every = config.checkpoint.every_frames or tenth
        self.recorded_at = time.perf_counter()
        self.frames_at_record = frames

    # -- context -------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        """Show what will run."""
        # What is said before the start stays on the screen; later messages scroll in the panel.
        for line in self.derived.lines(self.config):
            self.display.message(line)
        self.display.message(f"results   {self.directory}")
        if self.loggers.address is not None:
            self.display.message(f"W&B       {self.loggers.address}")
        if self._saved is not None:
            frames = self.parts.clocks.frames
            how = "simulators restored" if self._saved["environments"] else "new episodes begun"
            self.display.message(
                f"resumed   at {frames:,} frames, policy version "
                f"{self.parts.clocks.policy_version:,} ({how})"
            )
        elif self.parts.learner.update.compiled:
            self.display.message("compile   one graph per optimizer step; the first takes a while")
        collect = self.config.collect
        if collect.mode == "redis" and not collect.redis.spawn and not self.finished:
            from rl_twoclocks.collect.redis_source import generator_command

            self.display.message(f"waits     for generators: {generator_command(self.config)}")
        if self.finished:
            frames = self.parts.clocks.frames
            self.display.message(
                f"finished  the run has {frames:,} frames, the budget is used up: nothing to do"
            )
        self.display.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Write the error down if there is one, and close everything."""
        if error is not None:
            text = "".join(traceback.format_exception(error))
            # The disk may be full: then this fails as well.
            with contextlib.suppress(OSError):
                write_text(self.directory / "error.txt", text)
            # A run that failed is the one whose pictures are wanted most.
            self.draw()
        else:
            (self.directory / "error.txt").unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            # In reverse order, each of them whether or not another one fails.
            stack.callback(self.loggers.close, exit_code=1 if error is not None else 0)
            stack.callback(self.events.close)
            stack.callback(self.display.close)
            for evaluator in self.evaluators.values():
                stack.callback(evaluator.close)

    # -- around the rounds ---------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the budget has no room for another rollout."""
        parts = self.parts
        return parts.clocks.frames + parts.update_frequency > self.config.total_frames

    def collect(self, stop: StopSignal) -> TensorDict | None:
        """The next rollout to learn from; the environment clock ticks. None if a signal came first.

        Raises:
            WorkerError: those who collect are gone; the state as of the last round is saved.
        """
        parts = self.parts
        assert parts.source is not None
        limit = self.config.collect.max_staleness
        if limit is not None:
            # A frame has to be young enough when it leaves the window, not only when it comes.
            stays = parts.window.rollouts(parts.update_frequency) - 1
            limit = max(limit - stays, oldest_policy(self.config.clocks))
        if self.align:
            parts.window.clear()
            self._discard()
            if parts.delay.queue:
                parts.lose_delayed()
            limit = 0
        while True:
            try:
                found = parts.source.next(parts.clocks.policy_version, limit, lambda: bool(stop))
            except WorkerError:
                self.save(boundary=False, simulators=False)
                raise
            if found is None:
                return None
            rollout, frames = found
            parts.clocks.collected(
                frames, self.config.task.frame_skip, dropped=frames - rollout.numel()
            )
            if not parts.delay.filling or self.over:
                return parts.delay.push(rollout)
            parts.delay.fill(rollout)

    def _discard(self) -> None:
        """Drop what waits; the environment clock has ticked for it."""
        assert self.parts.source is not None
        frames = self.parts.source.discard()
        self.parts.clocks.collected(frames, self.config.task.frame_skip, dropped=frames)

    def publish(self, readings: dict[str, float], now: bool) -> None:
        """The policy clock ticks; weights and statistics are given away if their time has come.

        Args:
            readings: of the round; its KL may call for a publication before the time.
            now: publish in any case.
        """
        parts, timing = self.parts, self.config.clocks
        assert parts.source is not None
        parts.clocks.policy_version += 1
        if readings.get("train/steps"):
            parts.source.learnt()
        moved = readings.get("diag/kl_behaviour", 0.0)
        self.align = timing.align_kl is not None and moved > timing.align_kl
        sooner = timing.publish_kl is not None and moved > timing.publish_kl
        late = parts.clocks.policy_version - parts.clocks.published_version
        if now or late >= timing.publish_interval or sooner or self.align:
            if self.align and parts.ring is not None:
                parts.ring.clear()
            parts.publish()

    def start_collector(self) -> None:
        """Start collecting, with every random stream where the checkpoint left it."""
        with self.name_place():
            self.parts.start_source(self.config)
        if self._saved is not None:
            state.restore_random(self.parts, self._saved)
        else:
            # The collector tries the policy once when it starts; the stream begins here.
            self.parts.restart_streams(self.config.seed)
        if self.config.logger.wandb and self.config.logger.watch:
            # A copy: hooks on the network itself would be traced into the compiled step.
            self.watched = copy.deepcopy(self.parts.model)
            self.loggers.watch(self.watched)

    def restart_collector(self, update_frequency: int) -> None:
        """Collect another number of frames per rollout from now on; episodes and streams go on."""
        assert self.parts.source is not None
        self.parts.update_frequency = update_frequency
        self._discard()
        self.parts.source.close()
        if self.parts.delay.rounds:
            self.parts.lose_delayed()
        if self.parts.env.frames is not None:
            self.parts.env.frames.remember(columns(self.config, update_frequency))
        self.parts.env.hold()
        noise = self.parts.policy_noise.get_state()
        with self.name_place():
            self.parts.start_source(self.config)
        # The new collector has tried the policy once.
        self.parts.policy_noise.set_state(noise)

    def begin_new_episodes(self) -> None:
        """Reset all environments, from a stream that follows from seed and frames."""
        assert self.parts.source is not None
        self._discard()
        self.parts.source.begin_new_episodes(self.config.seed, self.parts.clocks.frames)
        self.parts.cut()

    def watch(self, ready: Round) -> None:
        """Let watchers see weights and gradients of this round, where that is due."""
        if self.watched is None:
            return
        steps = self.derived.minibatches * self.config.clocks.update_epochs
        every = -(-self.config.logger.watch_freq // steps)
        if self.parts.clocks.policy_version % every == 0:
            self.watched.load_state_dict(self.parts.model.state_dict())
            self.parts.learner.backward(ready, self.watched)

    @property
    def calibrating(self) -> bool:
        """Whether this round only estimates the normaliser's statistics."""
        norm = self.parts.normalizer
        return norm.config.calibrates and norm.observation.count == norm.returns.count == 0

    @contextlib.contextmanager
    def name_place(self, during: str = "") -> Iterator[None]:
        """Add round and frames to an error about a number that is not finite."""
        try:
            yield
        except NonFiniteError as error:
            clocks = self.parts.clocks
            good = f"the newest good checkpoint is at {self.saved_at:,} frames"
            raise NonFiniteError(
                f"{error} ({during}round {clocks.policy_version + 1}, after {clocks.frames:,} frames; "
                f"{good if self.saved_at >= 0 else 'there is no checkpoint yet'})"
            ) from error

    def record(self, readings: dict[str, float], stop: StopSignal) -> None:
        """End a round: evaluate, judge and save where due, write the metrics, show them."""
        clocks = self.parts.clocks
        before = self.frames_at_record
        last_round = self.over
        readings = {
            **clocks.readings(),
            **readings,
            **self.parts.episodes.readings(),
            **(self.parts.source.readings() if self.parts.source is not None else {}),
            **self._rates(),
        }
        if (restarts := int(readings.get("collect/restarts", 0))) > self.restarts:
            who = "simulator" if self.config.collect.mode == "sync" else "worker"
            text = f"a {who} died and was replaced, {restarts} so far"
            self.events.note("restart", text, clocks)
            self.restarts = restarts
        readings |= self.late
        evaluated = bool(self.late)
        self.late = {}
        if self.config.eval.enabled and (
            _due(before, clocks.frames, self.eval_every) or last_round
        ):
            evaluated = self._evaluate(readings, stop)
            self.owed = not evaluated
        for alarm in self.diagnose.judge(readings):
            self.events.alarm(alarm, clocks)
        readings |= self.steering.readings()
        # Rounds that are not logged must not swallow what was measured in them alone.
        self.unlogged |= readings
        while self.events.unseen:
            self.display.message(self.events.unseen.pop(0))
        rounds = clocks.policy_version
        if rounds % self.config.logger.log_freq == 0 or last_round or evaluated:
            self.loggers.log(self.unlogged, clocks.frames)
            self.unlogged.clear()
        self.display.update(readings, clocks.frames)
        if evaluated:
            # First: a checkpoint that knows of a best score must find its policy written.
            self._keep_best()
        if last_round or stop or _due(before, clocks.frames, self.save_every):
            self.save()
        if self.over and not last_round:
            # For new episodes what waited was dropped, and the budget has no room for another round.
            self.owed = self.config.eval.enabled and not evaluated
            if self.unlogged and not self.owed:
                self.loggers.log(self.unlogged, clocks.frames)
                self.unlogged.clear()

    def make_up(self, stop: StopSignal) -> None:
        """Make the evaluation that a signal, or a budget used up unawares, kept a round from.

        It goes into the next row; where there is no further round, into one of its own.
        """
        if not self.owed or not self.config.eval.enabled:
            return
        found: dict[str, float] = {}
        if not self._evaluate(found, stop):
            return
        self.owed, self.late = False, found
        if not self.over:
            return
        # There is no further round.
        self.loggers.log(self.unlogged | found, self.parts.clocks.frames)
        self.unlogged.clear()
        self._keep_best()
        self.saved_at = -1
        self.save(boundary=False)

    def save(self, boundary: bool = True, simulators: bool = True) -> None:
        """Write a checkpoint of this round's end, if it is not on disk yet.

        Without `boundary` no episode is begun anew for it: those who collect are gone. Without
        `simulators` whoever resumes begins new episodes: the present ones have gone on since.
        """
        clocks = self.parts.clocks
        if clocks.frames in (0, self.saved_at):
            return
        if boundary and self.config.checkpoint.episode_boundary and self.parts.source is not None:
            self.begin_new_episodes()
        keep = self.config.checkpoint.keep_last
        checkpoint.save(self.directory, self._state(simulators), clocks.frames, keep)
        self.saved_at = clocks.frames

    def draw(self) -> None:
        """Draw the run's pictures, if they are asked for; a run never fails for a picture."""
        if not self.config.diagnostics.pictures or self.diagnose.level < 2:
            return
        from rl_twoclocks.record.pictures import draw

        try:
            paths = draw(self.directory, self.diagnose.maps, self.diagnose.limits)
            self.loggers.pictures(paths, self.parts.clocks.frames)
        except Exception as error:
            self.display.message(f"no pictures: {error}")

    def result(self, stop: StopSignal) -> Result:
        """Sum the run up; write `result.json` when its budget is used up."""
        clocks = self.parts.clocks
        done = self.over and not self.owed
        path = self.directory / f"checkpoint-{clocks.frames:012d}.pt"
        result = Result(
            run_dir=str(self.directory),
            frames=clocks.frames,
            rounds=clocks.policy_version,
            return_mean=self.last_readings.get("eval/return_mean"),
            return_std=self.last_readings.get("eval/return_std"),
            best_return=self.best,
            wall_seconds=self._wall_seconds(),
            stopped_by=None if done or stop.received is None else stop.received.name,
            checkpoint=str(path) if path.exists() else None,
        )
        if clocks.dropped_frames and not self.finished:
            text = f"{clocks.dropped_frames:,} of {clocks.frames:,} frames were dropped unlearnt"
            self.display.message(f"dropped   {text}")
        over = clocks.frames - self.config.total_frames
        if done and not self.finished and over > 0:
            text = f"{over:,} frames beyond the budget were collected and dropped"
            self.display.message(f"budget    {text}")
        summary = self.directory / "result.json"
        if done and not (self.finished and summary.exists()):
            write_text(summary, json.dumps(result.as_dict(), indent=2) + "\n")
        return result

    # -- inside --------------------------------------------------------------------------------

    def _evaluate(self, readings: dict[str, float], stop: StopSignal) -> bool:
        started = time.perf_counter()
        if not self.evaluators:
            self.evaluators["eval/"] = Evaluator(self.config)
            if self.config.eval.changed:
                changed = under_changed_conditions(self.config)
                self.evaluators["eval/changed_"] = Evaluator(changed)
        parts, found = self.parts, dict[str, float]()
        for prefix, evaluator in self.evaluators.items():
            with self.name_place("in evaluation, "):
                result = evaluator(parts.flat.vector, parts.normalizer, lambda: bool(stop))
            if result is None:
                return False
            found |= result.readings(prefix)
        self.last_readings = found
        readings |= found
        readings["time/eval_seconds"] = time.perf_counter() - started
        return True

    def _take_best(self) -> None:
        """A best policy may be newer than the checkpoint, and is not to be lost to a worse one."""
        path = self.directory / "best.pt"
        if not path.is_file():
            return
        with contextlib.suppress(checkpoint.CheckpointError):
            best = checkpoint.load(path).get("best")
            scores = [score for score in (self.best, best) if score is not None]
            self.best = max(scores, default=None)

    def _keep_best(self) -> None:
        mean = self.last_readings["eval/return_mean"]
        if self.best is not None and mean <= self.best:
            return
        self.best = mean
        if self.config.checkpoint.save_best:
            checkpoint.write(self.directory / "best.pt", self._state())

    def _rates(self) -> dict[str, float]:
        now, frames = time.perf_counter(), self.parts.clocks.frames
        rate = (frames - self.frames_at_record) / max(now - self.recorded_at, 1e-9)
        self.recorded_at, self.frames_at_record = now, frames
        return {"time/frames_per_second": rate, "time/wall_seconds": self._wall_seconds()}

    def _wall_seconds(self) -> float:
        return self.earlier_seconds + time.perf_counter() - self.started

    def _state(self, simulators: bool = True) -> dict[str, Any]:
        extra = {
            "best": self.best,
            "last_evaluation": dict(self.last_readings),
            "wall_seconds": self._wall_seconds(),
            "loggers": self.loggers.state_dict(),
            "unlogged": dict(self.unlogged),
            "align": self.align,
            "owed": self.owed,
            "diagnose": self.diagnose.state_dict(),
            "steering": self.steering.state_dict(),
        }
        return state.capture(self.parts, self.config, extra, simulators)


def _due(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return now // every > before // every
