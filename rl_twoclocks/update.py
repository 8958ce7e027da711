"""One optimizer step on one minibatch: loss, finite check, clipping, step, reading.

The whole step is one function of flat tensors, so that it compiles to one graph. The finite check
and the KL stop are part of it: a step that must not happen is computed and thrown away on the
device, and `alive` turns to 0 for the rest of the round. No step needs the host.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from rl_twoclocks.config import AlgoConfig, InterventionsConfig, OptimConfig
from rl_twoclocks.diagnostics.policy_shift import effective_sample_size
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.objectives import OBJECTIVES, critic_loss, standardize
from rl_twoclocks.optim import FUSED, FlatParameters, adaptive_clip, make_optimizer

FIELDS = (
    "observation",
    "action",
    "behaviour_log_prob",
    "proximal_log_prob",
    "advantage",
    "target",
    "old_value",
)
"""What a minibatch holds, in the order in which the step takes it, each [n, ...]."""

Loss = tuple[Tensor, tuple[Tensor, ...]]
"""A loss and readings of it."""

READINGS = (
    "loss",
    "loss_policy",
    "loss_critic",
    "entropy",
    "kl",
    "clip_fraction",
    "ess",
    "max_ratio",
    "grad_norm",
    "step_scale",
    "finite",
    "applied",
)
"""What a step returns besides one gradient norm per layer."""

MIN_STEP_SCALE = 0.01
"""The KL-scaled step never falls below this share of the scheduled learning rate."""


@dataclass(frozen=True)
class Controls:
    """What may change from round to round without another graph. Infinity or 0 turns one off."""

    learning_rate: float
    clip_epsilon: float
    entropy_coeff: float = 0.0
    max_grad_norm: float = math.inf
    kl_limit: float = math.inf
    """Stop the round before the first step whose minibatch has a larger KL to the proximal policy."""
    kl_target: float = math.inf
    """Scale steps so that a minibatch's KL stays within a factor of 2 of this (rsl_rl's rule)."""
    max_importance_ratio: float = 100.0
    """Cap of the objective's importance weight."""
    ess_base: float = 0.0
    """Scale steps by sqrt(ESS / base) where the effective sample size is below it (VCPO)."""


def _compile_options(device: torch.device, cuda_graphs: bool) -> dict[str, Any]:
    """Inductor's options for a graph that is called a hundred thousand times with one shape."""
    options: dict[str, Any] = {
        # Guards are checked again at every call and cost as much as a fifth of the step; shapes and
        # settings are constant here, and minibatches are always full.
        "guard_filter_fn": lambda guards: [False] * len(guards),
        "size_asserts": False,
    }
    if device.type == "cpu":
        # Kernels called from C++: as many Python calls as there are layers would cost more.
        options["cpp_wrapper"] = True
    elif cuda_graphs:
        options["triton.cudagraphs"] = True
    return options


def _own_code(method: Any) -> MethodType:
    """Give a bound method a code object of its own.

    Compiled graphs are cached by code object, and without guards a second run in one process would
    be given the graph, and so the settings, of the first.
    """
    code = method.__func__.__code__
    function = FunctionType(
        code.replace(co_name=f"{code.co_name}_{next(_COUNTER)}"),
        method.__func__.__globals__,
        closure=method.__func__.__closure__,
    )
    return MethodType(function, method.__self__)


_COUNTER = itertools.count()
_CONTROLS = [field.name for field in fields(Controls)]


class Update:
    """The optimizer step and the state that it owns.

    Args:
        flat: the actor-critic's parameters.
        algo, optim, interventions: settings; constant for the run.
        compile_step: compile the step into one graph.
        cuda_graphs: capture that graph (CUDA only).
        gradient_lag: take gradients at the parameters of so many steps ago, for experiments.
        round_steps: optimizer steps of a round, as planned.
    """

    def __init__(
        self,
        flat: FlatParameters,
        algo: AlgoConfig,
        optim: OptimConfig,
        interventions: InterventionsConfig,
        compile_step: bool,
        cuda_graphs: bool = False,
        gradient_lag: int = 0,
        round_steps: int = 16,
    ) -> None:
        """Allocate the optimizer's state; compilation happens at the first call."""
        self.flat, self.algo, self.optim = flat, algo, optim
        model = flat.module
        assert isinstance(model, ActorCritic)
        self.model = model
        self.fields: tuple[str, ...] = FIELDS
        if algo.objective == "centred":
            # The density that scores are centred on, and its mass; see `distributions.*.blend`.
            keys = (*model.distribution.keys, "mass", "before")
            self.fields += tuple(f"centre_{key}" for key in keys)
        self.skip_nonfinite = interventions.on_nonfinite == "skip"
        self.protected = model.heads()
        zero = torch.zeros((), device=flat.vector.device)
        # Parameters that gradients are taken at; with a lag, those of some steps ago.
        self.seen = flat.vector
        self.past = deque[Tensor](maxlen=max(gradient_lag, 1))
        if gradient_lag:
            self.seen = flat.vector.clone()
        self.alive = zero + 1
        self.step_scale = zero + 1
        controls = Controls(optim.learning_rate, algo.clip_epsilon)
        self.controls = torch.tensor(astuple(controls), device=flat.vector.device)
        self.averaged = algo.proximal == "ewma"
        # The proximal policy as a moving average of the weights, and the sum of its own weights.
        self.proximal = flat.vector.clone() if self.averaged else torch.zeros(0)
        self.proximal_weight = zero + 1
        usual = 1 - 2 / (2 + round_steps)
        self.proximal_decay = usual if algo.proximal_decay is None else algo.proximal_decay
        self.fused = optim.name in FUSED and set(optim.kwargs) <= FUSED[optim.name]
        # As in torch.optim.
        self.default_decay = 0.01 if optim.name == "AdamW" else 0.0
        if self.fused:
            self.moments = torch.zeros(2, flat.vector.numel(), device=flat.vector.device)
            self.steps = zero.clone()
            self.optimizer = None
        else:
            self.optimizer = make_optimizer(optim, model)
        self.compiled = compile_step
        self.cuda_graphs = compile_step and cuda_graphs
        if self.cuda_graphs:
            # Graphs may write only to memory that they know to stay where it is.
            state = [flat.vector, self.seen, self.alive, self.controls, self.step_scale]
            state += [self.moments, self.steps] if self.fused else []
            state += [self.proximal, self.proximal_weight] if self.averaged else []
            for tensor in state:
                torch._dynamo.mark_static_address(tensor)
        self._step: Any = self._fused_step if self.fused else self._clipped_gradient
        if compile_step:
            self._step = torch.compile(
                _own_code(self._step),
                fullgraph=True,
                dynamic=False,
                options=_compile_options(flat.vector.device, cuda_graphs),
            )

    def start_round(self, controls: Controls) -> None:
        """Set what schedules and the governor move, and let steps happen again."""
        self.controls.copy_(torch.tensor(astuple(controls)))
        self.alive.fill_(1)

    def _control(self, name: str) -> Tensor:
        return self.controls[_CONTROLS.index(name)]

    def __call__(self, *minibatch: Tensor) -> Tensor:
        """Take one step on tensors in the order of `fields`; return readings [READINGS + layers]."""
        if self.seen is not self.flat.vector:
            full = len(self.past) == self.past.maxlen
            self.seen.copy_(self.past[0] if full else self.flat.vector)
            self.past.append(self.flat.vector.detach().clone())
        if self.optimizer is None:
            readings = self._step(*minibatch)
            # A graph writes its results to the same memory at every call.
            return readings.clone() if self.cuda_graphs else readings
        grad, readings = self._step(*minibatch)
        if bool(readings[READINGS.index("applied")]):
            self.flat.set_grad(grad)
            rate = self._control("learning_rate") * readings[READINGS.index("step_scale")]
            for group in self.optimizer.param_groups:
                group["lr"] = float(rate)
            self.optimizer.step()
            self._average(torch.ones_like(self.alive))
        return readings.clone() if self.cuda_graphs else readings

    def loss(
        self, named: dict[str, Tensor], *minibatch: Tensor, model: ActorCritic | None = None
    ) -> Loss:
        """The loss of a minibatch under named parameters, and readings of it."""
        obs, action, behaviour, proximal, advantage, target, old_value, *centre = minibatch
        start = proximal
        params, value = functional_call(model or self.model, named, (obs,))
        log_prob = self.model.distribution.log_prob(params, action)
        entropy = self.model.distribution.entropy(params).mean()
        if self.algo.normalize_advantage == "minibatch":
            advantage = standardize(advantage)
        if self.averaged:
            with torch.no_grad():
                averaged, _ = functional_call(self.model, self.flat.named(self.proximal), (obs,))
                proximal = self.model.distribution.log_prob(averaged, action)
        terms = OBJECTIVES[self.algo.objective](
            log_prob,
            behaviour,
            proximal,
            advantage,
            self._control("clip_epsilon"),
            self._control("max_importance_ratio"),
            **self._centring(params, centre),
        )
        policy = terms.loss.mean()
        critic = critic_loss(value, target, old_value, self.algo.value_clip).mean()
        loss = policy + self.algo.critic_coeff * critic - self._control("entropy_coeff") * entropy
        with torch.no_grad():
            # How far this round's steps have come. An average lags behind every step, so that a stop
            # by the KL to it would end the next round at its first step, and all that follow.
            log_ratio = log_prob - start
            # k3, never negative but for rounding.
            kl = (torch.expm1(log_ratio) - log_ratio).clamp(min=0).mean()
            ess = effective_sample_size((log_prob - behaviour).flatten())
        aux = (policy, critic, entropy, kl, terms.clipped.mean(), ess, terms.ratio.max())
        return loss, aux

    def _centring(self, params: tuple[Tensor, ...], centre: list[Tensor]) -> dict[str, Any]:
        """What the `centred` objective takes besides."""
        if self.algo.objective != "centred":
            return {}
        *blend, mass, before = centre
        expected = mass * self.model.distribution.expected_log_prob(tuple(blend), params)
        power = self.algo.importance_power
        return {"expected": expected, "expected_before": before, "power": power}

    def _clipped_gradient(self, *minibatch: Tensor) -> tuple[Tensor, Tensor]:
        theta = self.seen

        def loss_of(vector: Tensor) -> Loss:
            return self.loss(self.flat.named(vector), *minibatch)

        grad, (loss, aux) = self._differentiate(loss_of, theta)
        layers = torch.stack([part.square().sum() for part in self.flat.split(grad)]).sqrt()
        norm = layers.square().sum().sqrt()
        if self.optim.agc.enabled:
            grad = self._adaptive_clip(theta, grad)
        # The norm is bounded before the step size is touched: a stale sample's exploding gradient
        # looks like a learning rate that is too high.
        after_agc = grad.square().sum().sqrt() if self.optim.agc.enabled else norm
        grad = grad * (self._control("max_grad_norm") / (after_agc + 1e-6)).clamp(max=1.0)
        finite = (torch.isfinite(loss) & torch.isfinite(norm)).to(loss.dtype)
        within = (aux[3] <= self._control("kl_limit")).to(loss.dtype)
        # With `skip` only this step is lost; otherwise the round is over on the first bad one. A KL
        # that is NaN is the finite check's business, so that it cannot pass as a KL stop.
        over = (1 - within) * finite if self.skip_nonfinite else 1 - within * finite
        told = self.alive * finite
        applied = told * within
        self.alive.copy_(self.alive * (1 - over))
        scale = self._scale_step(aux[3], aux[5], told)
        readings = torch.stack([loss, *aux, norm, scale, finite, applied])
        return grad, torch.cat([readings, layers])

    def _differentiate(
        self, loss_of: Callable[[Tensor], Loss], theta: Tensor
    ) -> tuple[Tensor, Loss]:
        """Gradient at `theta`, loss and readings, without a graph that outlives the call."""
        if self.compiled:
            return grad_and_value(loss_of, has_aux=True)(theta)
        # The same operations, for two thirds of the time: transforms cost nothing in a graph alone.
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            loss, aux = loss_of(leaf)
            (grad,) = torch.autograd.grad(loss, leaf)
        return grad, (loss.detach(), tuple(reading.detach() for reading in aux))

    def _scale_step(self, kl: Tensor, ess: Tensor, told: Tensor) -> Tensor:
        """Share of the learning rate for this step, at most 1: steps never exceed the tuned rate.

        `told`: whether the KL is news; also where it is so high that the step is refused.
        """
        target, scale = self._control("kl_target"), self.step_scale
        lower = torch.where(kl > 2 * target, scale / 1.5, scale)
        # A KL of 0 means that there was nothing to learn, not that larger steps are safe.
        scaled = torch.where((kl < target / 2) & (kl > 0), lower * 1.5, lower)
        scaled = scaled.clamp(MIN_STEP_SCALE, 1.0)
        self.step_scale.copy_(torch.where(told > 0, scaled, scale))
        base = self._control("ess_base")
        # Weights that all underflow leave nothing to learn from: a step of size 0, never of size NaN.
        share = torch.where(torch.isfinite(ess), ess, 0.0) / base.clamp(min=1e-6)
        return torch.where(base > 0, scaled * share.clamp(max=1.0).sqrt(), scaled)

    def _average(self, applied: Tensor) -> None:
        """Take the newest weights into the proximal policy (Hilton et al. 2022, bias-corrected)."""
        if not self.averaged:
            return
        old = self.proximal_decay * self.proximal_weight
        new = old + 1
        mean = self.proximal * (old / new) + self.flat.vector / new
        self.proximal.copy_(torch.where(applied > 0, mean, self.proximal))
        self.proximal_weight.copy_(torch.where(applied > 0, new, self.proximal_weight))

    def _fused_step(self, *minibatch: Tensor) -> Tensor:
        grad, readings = self._clipped_gradient(*minibatch)
        theta, (mean, square) = self.flat.vector, self.moments
        applied = readings[READINGS.index("applied")] > 0
        options = self.optim.kwargs
        beta1, beta2 = options.get("betas", (0.9, 0.999))
        decay = options.get("weight_decay", self.default_decay)
        lr = self._control("learning_rate") * readings[READINGS.index("step_scale")]
        steps = self.steps + 1
        decayed = theta
        if decay and self.optim.name == "AdamW":
            decayed = theta * (1 - lr * decay)
        elif decay:
            grad = grad + decay * theta
        new_mean = torch.lerp(mean, grad, 1 - beta1)
        new_square = beta2 * square + (1 - beta2) * grad * grad
        # torch.optim.Adam's order of operations: eps is added after the bias correction.
        root = new_square.sqrt() / (1 - beta2**steps).sqrt() + options.get("eps", 1e-8)
        new_theta = decayed - (lr / (1 - beta1**steps)) * new_mean / root
        self.moments.copy_(torch.where(applied, torch.stack([new_mean, new_square]), self.moments))
        self.steps.copy_(torch.where(applied, steps, self.steps))
        theta.copy_(torch.where(applied, new_theta, theta))
        self._average(readings[READINGS.index("applied")])
        return readings

    def _adaptive_clip(self, theta: Tensor, grad: Tensor) -> Tensor:
        agc = self.optim.agc
        parts = zip(self.flat.names, self.flat.split(theta), self.flat.split(grad), strict=True)
        clipped = [
            g if name in self.protected else adaptive_clip(w, g, agc.clipping, agc.eps)
            for name, w, g in parts
        ]
        return torch.cat([part.reshape(-1) for part in clipped])

    def state_dict(self) -> dict[str, Any]:
        """Optimizer moments and step count, step scale, and the averaged proximal policy."""
        own = {
            "step_scale": self.step_scale.clone(),
            "proximal": self.proximal.clone(),
            "proximal_weight": self.proximal_weight.clone(),
            "past": torch.stack(list(self.past)) if self.past else None,
        }
        if self.optimizer is not None:
            return own | {"optimizer": self.optimizer.state_dict()}
        return own | {"moments": self.moments.clone(), "steps": self.steps.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            ValueError: the state is of another kind of optimizer.
        """
        if (self.optimizer is None) != ("moments" in state):
            raise ValueError("the checkpoint's optimizer state is of another kind of optimizer")
        self.past.clear()
        if state["past"] is not None:
            self.past.extend(state["past"].to(self.flat.vector.device).unbind())
        self.step_scale.copy_(state["step_scale"])
        self.proximal.copy_(state["proximal"])
        self.proximal_weight.copy_(state["proximal_weight"])
        if self.optimizer is not None:
            # torch keeps the tensors it is given, and would go on stepping inside the saved state.
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        else:
            self.moments.copy_(state["moments"])
            self.steps.copy_(state["steps"])
