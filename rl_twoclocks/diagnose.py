"""Which diagnostics run when; they read, and change nothing."""

from __future__ import annotations

import time
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks.build import Parts
from rl_twoclocks.clocks import clock_readings
from rl_twoclocks.config import Config
from rl_twoclocks.diagnostics import (
    Alarm,
    History,
    Panel,
    explained_variance,
    first_ratio,
    levels,
    plasticity,
    policy_shift,
    resources,
    score,
)
from rl_twoclocks.diagnostics import gradients as gradient_signs
from rl_twoclocks.diagnostics import rollout_entropy as entropy
from rl_twoclocks.diagnostics.cliff import REWARD, TERMINATIONS, pace_readings
from rl_twoclocks.diagnostics.history import EPISODE, HEIGHT, LEVEL, RETURN, SMOOTHED
from rl_twoclocks.diagnostics.panel import QUIET_ROUNDS
from rl_twoclocks.diagnostics.places import Places
from rl_twoclocks.distributions import Gaussian
from rl_twoclocks.learner import Round
from rl_twoclocks.objectives import standardize

LEVELS = ("off", "minimal", "default", "full")
GRADIENTS = 16
"""Minibatch gradients in the covariance."""
SHORTEST = 8
"""Decisions per environment from which it can be said whether it stands still."""
IMAGES = 128
"""Frames of a window of images whose policy is looked at; all would take a third of a pass."""
MOST_CELLS = 0.3
"""Share of a grid's cells that can be asked for."""
MAPS = 64
"""Entropy maps kept over a run, for the picture."""


class Diagnose:
    """Runs the configured set around a round's steps, and keeps history, alarms and maps."""

    def __init__(self, config: Config, parts: Parts) -> None:
        """Choose the set."""
        self.config, self.parts = config, parts
        self.level = LEVELS.index(config.diagnostics.name)
        self.limits = levels(config)
        self.history = History()
        # What is measured seldom is not over because it was not measured.
        quiet = max(QUIET_ROUNDS, 2 * config.diagnostics.every)
        self.panel = Panel(self.limits, quiet=quiet)
        self.places = Places()
        self.maps: list[tuple[int, Tensor]] = []
        self.maps_every = 1
        self.begun: list[Alarm] = []
        self.passes = config.clocks.update_epochs
        """Passes of the last round, which the governor may have changed."""
        self.seconds = 0.0
        self.forgot = False
        """Whether there was a rescue in this round."""

    # -- measuring -----------------------------------------------------------------------------

    @torch.no_grad()
    def before(self, window: TensorDict, ready: Round, rollout: TensorDict) -> dict[str, float]:
        """Read the data and the clocks, before the round's first step."""
        if self.level < 1:
            return {}
        started = time.perf_counter()
        readings = self.clocks(window, rollout.numel())
        readings["diag/action_dims"] = self._dims(ready)
        newest = window["policy_version"][:, -1]
        if int(newest.min()) == self.parts.clocks.policy_version:
            columns = min(rollout.shape[1], ready.log_ratio.shape[1])
            ratio, alarm = first_ratio(
                ready.log_ratio[:, -columns:],
                self.parts.behaviour.moved(self.parts.flat.vector, self.parts.normalizer),
                self.limits.first_ratio_mean,
                self.limits.first_ratio_max,
            )
            readings |= ratio
            if alarm is not None:
                self.begun += self.panel.take([alarm], self.history.round)
        if self.level > 1:
            if not self._calibrating:
                readings |= self._data(window, ready, rollout.shape[1])
            readings |= pace_readings(rollout["reward"], rollout["terminated"])
            if lengths := [length for _, length in self.parts.episodes.finished]:
                readings[EPISODE] = max(lengths) / rollout.shape[1]
        self._take(readings)
        self.seconds = time.perf_counter() - started
        return readings

    @torch.no_grad()
    def after(self, ready: Round) -> dict[str, float]:
        """Read how far the round moved the policy, and what it did to the networks."""
        if self.level < 2:
            return {}
        started = time.perf_counter()
        readings = self._policy(ready)
        readings |= self._by_pass()
        readings |= resources.memory_readings(self.parts.flat.vector.device)
        if self.level > 2 or self.history.round % self.config.diagnostics.every == 0:
            readings |= self._costly(ready)
        readings["time/diagnostics_seconds"] = self.seconds + time.perf_counter() - started
        return readings

    @torch.no_grad()
    def measure(self, window: TensorDict, ready: Round) -> dict[str, float]:
        """All readings of one window at the present parameters, outside a run."""
        # What the run compared this window with is not what came before it.
        self.places.fresh = None
        size = {"diag/action_dims": self._dims(ready)}
        return (
            size
            | self._data(window, ready, window.shape[1])
            | self._policy(ready)
            | self._costly(ready)
        )

    def _policy(self, ready: Round) -> dict[str, float]:
        model = self.parts.model
        flat, behaviour = self._some(ready)
        dist = model.distribution
        if model.memory is None:
            current = model.policy(flat["observation"])
        else:
            # By segments: a memory runs through them.
            segments = model.policy(ready.segments["observation"])
            current = tuple(part.flatten(0, 1) for part in segments)
        log_ratio = dist.log_prob(current, flat["action"]) - flat["behaviour_log_prob"]
        readings = policy_shift(dist, behaviour, current, log_ratio)
        advantage = flat["advantage"]
        if self.config.algo.normalize_advantage == "minibatch":
            advantage = standardize(advantage)
        readings |= score.score_readings(
            dist, behaviour, current, flat["action"], advantage, log_ratio
        )
        readings["diag/policy_variance"] = plasticity.policy_variance(dist, current)
        if issubclass(dist, Gaussian):
            readings["diag/policy_std"] = float(current[1].mean())
        else:
            entropy_now, most = dist.entropy(current).mean(), dist.largest_entropy(current).mean()
            # Where masks leave no choice anywhere, nothing is missing.
            readings["diag/policy_entropy_share"] = float(entropy_now / most) if most > 0 else 1.0
        return readings

    def judge(self, readings: dict[str, float]) -> list[Alarm]:
        """Enter what a round came to, evaluation included; give the alarms that it began.

        Adds `alarm/<name>` (1 watch, 2 warn, 3 danger) to the readings while the alarm's rule holds.
        """
        if self.level < 1:
            return []
        started = time.perf_counter()
        norms = {k: v for k, v in readings.items() if k.startswith("grad_norm/")}
        norms.pop("grad_norm/total", None)
        if norms:
            readings["diag/grad_norm_max"] = max(norms.values())
        # What was measured before a rescue is of the policy that is no more.
        self._take(_evaluated(readings) if self.forgot else readings)
        self.forgot = False
        begun, self.begun = self.begun, []
        sounding = self.panel.fresh(self.history.round)
        readings |= {f"alarm/{name}": float(alarm.rank + 1) for name, alarm in sounding.items()}
        self.history.next_round()
        if "time/diagnostics_seconds" in readings:
            readings["time/diagnostics_seconds"] += time.perf_counter() - started
        return begun

    def alarms(self) -> dict[str, Alarm]:
        """Alarms whose rule held in this round or the one before."""
        return self.panel.fresh(self.history.round, rounds=2)

    @property
    def _calibrating(self) -> bool:
        """Whether nothing is known yet of how large observations are: cells would have no size."""
        norm = self.parts.normalizer
        return self.config.normalize.observation and norm.observation.count == 0

    # -- inside --------------------------------------------------------------------------------

    def _take(self, readings: dict[str, float]) -> None:
        self.history.add({k: v for k, v in readings.items() if k.startswith(_REMEMBERED)})
        self.begun += self.panel.judge(self.history)

    def _dims(self, ready: Round) -> float:
        """Numbers in an action."""
        return float(ready.flat["action"][0].numel())

    def clocks(
        self, window: TensorDict, fresh: int, keep: Tensor | None = None
    ) -> dict[str, float]:
        """How old a window is and how often its frames serve, where `fresh` of them are new.

        `keep`: numbers of the frames that the round learns from, in the flattened window; None: all.
        """
        parts, clocks = self.parts, self.config.clocks
        batch_size = parts.window.length * parts.window.num_envs
        frames = window.numel() if keep is None else keep.numel()
        frames = min(clocks.sample or frames, frames)
        return clock_readings(
            parts.clocks,
            window["policy_version"],
            fresh,
            batch_size / parts.update_frequency,
            self.passes,
            -(-frames // clocks.minibatch_size),
            frames / window.numel(),
            keep,
        )

    def chosen(self, window: TensorDict, fresh: int, keep: Tensor | None) -> dict[str, float]:
        """The clocks again, against what the governor has chosen for the round: frames and passes."""
        return self.clocks(window, fresh, keep) if self.level > 0 else {}

    def _some(self, ready: Round) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """A round's frames as the network takes them, and the policy that acted; of images a few."""
        if not self.parts.model.sees:
            return ready.flat, ready.behaviour
        frames = ready.log_ratio.numel()
        some = torch.arange(0, frames, -(-frames // IMAGES), device=ready.log_ratio.device)
        flat = {key: value[some] for key, value in ready.flat.items()}
        flat["observation"] = self.parts.learner.look(flat["observation"])
        return flat, tuple(part[some] for part in ready.behaviour)

    def _states(self, window: TensorDict, ready: Round) -> tuple[Tensor, Tensor]:
        """What states are told apart by, [n, d]: raw, and as the network takes them."""
        if not self.parts.model.sees:
            seen = self.parts.model.seen(ready.flat["observation"])
            return window["observation"].flatten(0, 1), seen
        # The newest image of each stack, small: what is in the others has been a newest one too.
        newest = ready.flat["observation"][:, -1:]
        parts = newest.split(IMAGES)
        small = torch.cat([entropy.thumbnails(self.parts.learner.look(part)) for part in parts])
        # As raw observations are: what is kept of them is saved, and goes on where there is no GPU.
        small = small.cpu()
        return small, small

    def _data(self, window: TensorDict, ready: Round, fresh: int) -> dict[str, float]:
        """Readings of a window whose last `fresh` columns are the newest rollout."""
        states, features = self._states(window, ready)
        raw = states
        scale = self.parts.normalizer.scale if self.config.normalize.observation else None
        if self.config.diagnostics.features == "joint":
            dist = self.parts.model.distribution
            choices = None if dist is Gaussian else ready.behaviour[0].shape[-1]
            raw = entropy.with_actions(raw, window["action"].flatten(0, 1), choices)
            features = entropy.with_actions(features, ready.flat["action"], choices)
            if scale is not None:
                scale = torch.cat([scale.flatten(), scale.new_ones(raw.shape[1] - scale.numel())])
        n, columns = window.batch_size
        newest = torch.arange(n * columns).view(n, columns)[:, -fresh:].flatten()
        readings = self.places.readings(raw, features, scale, states, self.parts.model.sees, newest)
        # Before learning: later, targets are of newer critics than `old_value`.
        readings["diag/explained_variance"] = explained_variance(
            ready.flat["old_value"], ready.flat["target"]
        )
        grid = self.places.grid
        assert grid is not None
        # Where there are hardly more states than environments, those that stand still look as others do.
        few = grid.discrete and grid.distinct < SHORTEST * n
        # Nor where all environments together have to fill a good part of the cells.
        few |= n * self.limits.places > MOST_CELLS * grid.bins**2
        if columns >= SHORTEST and not few:
            own = readings["diag/rollout_entropy_own_range"]
            readings["diag/places_per_env"] = 2.0**own / n
        self._keep_map()
        return readings

    def _by_pass(self) -> dict[str, float]:
        by_pass = self.parts.learner.by_pass
        readings = {"diag/critic_loss_first_pass": by_pass["loss_critic"][0]}
        level = self.limits.kl_warn * self.history.newest("diag/action_dims", 1.0)
        beyond = [i for i, kl in enumerate(by_pass["kl"], 1) if kl > level]
        readings["diag/kl_pass"] = float(beyond[0]) if beyond else 0.0
        if self.level > 2:
            for name, values in by_pass.items():
                readings |= {f"diag/{name}_pass_{i}": v for i, v in enumerate(values, 1)}
        return readings

    def _costly(self, ready: Round) -> dict[str, float]:
        parts = self.parts
        readings: dict[str, float] = {}
        observation = self._some(ready)[0]["observation"]
        if parts.model.memory is not None:
            observation = parts.model.features(ready.segments["observation"]).flatten(0, 1)
        if ready.log_ratio.numel() >= 3 * self.config.clocks.minibatch_size:
            with torch.enable_grad():
                gradients = parts.learner.gradients(ready, GRADIENTS)
            gram = gradient_signs.gram_matrix(gradients)
            readings |= gradient_signs.covariance_readings(gram, self.config.clocks.minibatch_size)
        actor = plasticity.hidden_features(parts.model.layers("actor"), observation)
        if not parts.model.sees:
            # Images of one scene differ little: there most healthy ReLUs stand still.
            critic = plasticity.hidden_features(parts.model.critic, observation)
            readings["diag/dead_units"] = plasticity.dead_fraction(actor + critic)
        if actor:
            readings["diag/feature_rank"] = float(plasticity.feature_rank(actor[-1]))
        readings |= resources.utilisation_readings(parts.flat.vector.device)
        return readings

    def _keep_map(self) -> None:
        """Keep an evenly spread sample of maps over the whole run, however long it gets."""
        if self.history.round % self.maps_every:
            return
        assert self.places.grid is not None
        assert self.places.counts is not None
        coarse = entropy.coarse_map(self.places.counts, self.places.grid.side)
        self.maps.append((self.parts.clocks.frames, coarse.to(torch.int32).cpu()))
        if len(self.maps) > MAPS:
            self.maps, self.maps_every = self.maps[::2], self.maps_every * 2

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """History, alarms, grid and maps."""
        return {
            "history": self.history.state_dict(),
            "panel": self.panel.state_dict(),
            "places": self.places.state_dict(),
            "maps": [[frames, counts] for frames, counts in self.maps],
            "maps_every": self.maps_every,
            "passes": self.passes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        self.history.load_state_dict(state["history"])
        self.panel.load_state_dict(state["panel"])
        self.places.load_state_dict(state["places"])
        self.maps = [(frames, counts) for frames, counts in state["maps"]]
        self.maps_every = state["maps_every"]
        self.passes = state["passes"]

    def forget(self, score: float) -> None:
        """Start anew after a rescue to a state with that smoothed return; the grid stays."""
        kept = {REWARD: float("nan"), TERMINATIONS: self.history.highest(TERMINATIONS)}
        self.history.forget(dict.fromkeys((RETURN, SMOOTHED, LEVEL, HEIGHT), score) | kept)
        self.panel.clear()
        self.places.fresh = None
        self.forgot = True


def _evaluated(readings: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in readings.items() if name.startswith("eval/")}


_REMEMBERED = (
    "diag/",
    "clock/staleness",
    "clock/publish",
    "clock/ratio",
    "collect/worker",
    "train/clip",
    "train/kl",
    "rollout/return_round",
    "rollout/episodes",
    "eval/return",
    "eval/changed",
    "time/memory",
    "time/device",
)
