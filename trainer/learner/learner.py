"""The learner: how gradients change parameters."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.learner import gradients as gradients_lib
from trainer.learner.optimizers import AdamW, Mask, Optimizer
from trainer.learner.paths import (
    Path,
    alike,
    check_patterns,
    leaves,
    matching,
    names,
    replaced,
    select,
)
from trainer.learner.schedules import Constant, Schedule
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import Component, Number, OptionalNumber, require_positive
from trainer.symbolic.errors import UserError

_MAIN = 'main'
"""The name of the learner's own optimizer among all."""

_CLIPS = (
    'clip_gradient_norm_to_value',
    'clip_gradient_single_norm_to_value',
    'clip_gradient_to_value',
)
_PATTERNS = ('bprop_variable_exclusion', 'bprop_variable_inclusion')


@dataclasses.dataclass(frozen=True)
class Update:
    """What one step of a learner returns.

    Attributes:
        before: the state before the step.
        params: the new parameters.
        opt_state: the new state of the optimizer.
        ema_params: the new averages of the parameters.
        is_valid: whether the step counts; what is not finite, say, changes nothing.
        metrics: the learning rate, the norm of the gradients, and the steps that were skipped.
    """

    before: TrainState
    params: Any
    opt_state: Any
    ema_params: Any
    is_valid: jax.Array
    metrics: Metrics

    def state(self, non_trainable: Any) -> TrainState:
        """The state after the step. A step that is skipped is a step, too."""
        before = self.before
        kept = before.params, before.non_trainable, before.opt_state, before.ema_params
        new = self.params, non_trainable, self.opt_state, self.ema_params
        valid = jax.tree.map(lambda n, k: jnp.where(self.is_valid, n, k), new, kept)
        return TrainState(before.step + 1, *valid)


class AuxiliaryOptimizer(Component):
    """An optimizer for some of the parameters, with a learning rate of its own.

    Attributes:
        patterns: regular expressions; a parameter is its own where one of them matches all of the
            parameter's path, layer by layer: `stack.layers_3.attention.query`.
        learning_rate: its peak; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: what to do with the gradients.
    """

    patterns: list[str]
    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()

    def check(self) -> None:
        _check_learning_rate(self.learning_rate)
        if not self.patterns:
            raise ValueError('patterns must not be empty')
        check_patterns(self.patterns, 'patterns')


class Learner(Component):
    """Gradients -> clipping -> optimizer -> weight decay -> new parameters.

    Patterns are regular expressions that match the whole path of a parameter, layer by layer:
    `stack.layers_3.attention.query`, or `stack.*` for all in the stack.

    Attributes:
        learning_rate: its peak; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: what to do with the gradients.
        clip_gradient_norm_to_value: gradients whose global norm is above this are scaled down to
            it; None clips nothing.
        microbatches: accumulate gradients over so many equal parts of each batch.
        ema_decay: evaluate and decode with an exponential average of the parameters, of which a
            step keeps this much, or less at the beginning: min(decay, (1 + t) / (10 + t)). None
            averages nothing.
        enable_skip_step_on_gradient_anomalies: a step whose gradients are not finite changes
            nothing but the number of steps.
        clip_gradient_single_norm_to_value: instead, the gradient of each parameter of each layer
            is scaled down to this norm where it is above.
        clip_gradient_to_value: instead, each element is clipped to plus or minus this.
        skip_step_gradient_norm_value: a step whose gradients have a global norm of this or more
            changes nothing but the number of steps, either; None skips none.
        bprop_variable_exclusion: patterns of parameters that are not trained. They have no
            gradient, no weight decay, no state of the optimizer, and no part in the norm.
        bprop_variable_inclusion: instead, patterns of the only ones that are trained.
        auxiliary_optimizers: other optimizers by name, each for the parameters that its patterns
            match; `optimizer` has the rest.
        apply_separate_scaling: clips what each optimizer has by its own norm, and not all by that
            of all.
        grad_norm_individual_vars: adds the metrics `gradient_norm/stack/layers_0/…`.
        var_norm_summary: adds the metric `parameter_norm`, of all parameters that are trained.
        var_norm_individual_vars: adds the metrics `parameter_norm/stack/layers_0/…`.
    """

    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()
    clip_gradient_norm_to_value: OptionalNumber = 1.0
    microbatches: int = 1
    ema_decay: OptionalNumber = None
    enable_skip_step_on_gradient_anomalies: bool = True
    clip_gradient_single_norm_to_value: OptionalNumber = None
    clip_gradient_to_value: OptionalNumber = None
    skip_step_gradient_norm_value: OptionalNumber = None
    bprop_variable_exclusion: list[str] = []
    bprop_variable_inclusion: list[str] = []
    auxiliary_optimizers: dict[str, AuxiliaryOptimizer] = {}
    apply_separate_scaling: bool = False
    grad_norm_individual_vars: bool = False
    var_norm_summary: bool = False
    var_norm_individual_vars: bool = False

    def check(self) -> None:
        _check_learning_rate(self.learning_rate)
        for name in (*_CLIPS, 'skip_step_gradient_norm_value'):
            value = self.sym_getattr(name)
            if value is not None and value <= 0:
                raise ValueError(f'{name} must be positive: {value}')
        clips = [name for name in _CLIPS if self.sym_getattr(name) is not None]
        if len(clips) > 1:
            raise ValueError(
                f'only one of {" and ".join(clips)} must be given: set the other to None'
            )
        require_positive(self, 'microbatches')
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ValueError(f'ema_decay must lie in [0, 1): {self.ema_decay}')
        if self.bprop_variable_exclusion and self.bprop_variable_inclusion:
            raise ValueError(f'only one of {" and ".join(_PATTERNS)} must be given')
        for name in _PATTERNS:
            check_patterns(self.sym_getattr(name), name)
        if _MAIN in self.auxiliary_optimizers:
            raise ValueError(f'auxiliary_optimizers must not be called {_MAIN!r}: `optimizer` is')

    def trained(self, params: Any) -> Any:
        """The part of a tree of parameters that is trained; there is no trace of the rest in it.

        Raises:
            UserError: a pattern selects nothing, or splits a scanned run; or nothing is trained.
        """
        field = _PATTERNS[bool(self.bprop_variable_inclusion)]
        patterns = self.sym_getattr(field)
        if not patterns:
            return params
        matched = matching(patterns, params, f'task.learner.{field}')
        kept = matched if self.bprop_variable_inclusion else set(leaves(params)) - matched
        if not kept:
            raise UserError(f'task.learner.{field}: it leaves no parameter to train')
        return select(params, kept)

    def init(self, params: Any, decay_mask: Mask) -> Any:
        """The state of the optimizer for new parameters; of several, by their names."""
        states = {
            name: owner.optimizer.make(jnp.zeros(()), alike(decay_mask, part)).init(part)
            for name, (owner, part) in self._parts(self.trained(params)).items()
        }
        return states if self.auxiliary_optimizers else states[_MAIN]

    def init_ema(self, params: Any) -> Any:
        """The averages of new parameters; {} where none are asked for."""
        return {} if self.ema_decay is None else jax.tree.map(jnp.copy, params)

    def update(
        self, state: TrainState, gradients: Any, loss: WeightedScalar, decay_mask: Mask
    ) -> Update:
        """One step.

        Args:
            state: before the step.
            gradients: a tree like those of its parameters that are trained.
            loss: of the batch.
            decay_mask: a tree like the parameters, True where weight decay applies.
        """
        params = self.trained(state.params)
        norm = optax.tree.norm(gradients)
        is_valid = self._is_valid(norm, loss)
        metrics = self._norms(params, gradients, norm, is_valid)
        metrics['skipped_steps'] = Count(1 - is_valid.astype(jnp.float32))
        if not self.apply_separate_scaling:
            gradients = self._clipped(gradients, norm)
        several = bool(self.auxiliary_optimizers)
        before, after = (state.opt_state if several else {_MAIN: state.opt_state}), {}
        for name, (owner, part) in self._parts(params).items():
            own = alike(gradients, part)
            if self.apply_separate_scaling:
                own = self._clipped(own, optax.tree.norm(own))
            learning_rate = owner.learning_rate * owner.schedule.factor(state.step)
            optimizer = owner.optimizer.make(learning_rate, alike(decay_mask, part))
            updates, after[name] = optimizer.update(own, before[name], part)
            params = replaced(params, optax.apply_updates(part, updates))
            suffix = '' if name == _MAIN else f'/{name}'
            one = jnp.ones((), jnp.float32)
            metrics[f'learning_rate{suffix}'] = WeightedScalar(learning_rate, one)
        opt_state = after if several else after[_MAIN]
        averages = self._averaged(state, params)
        params = replaced(state.params, params)
        return Update(state, params, opt_state, averages, is_valid, metrics)

    def _parts(self, params: Any) -> dict[str, tuple[Any, Any]]:
        """Who has which of the parameters that are trained: {name: (optimizer's owner, part)}."""
        of: dict[Path, str] = {}
        for name, auxiliary in self.auxiliary_optimizers.items():
            field = f'task.learner.auxiliary_optimizers.{name}.patterns'
            for path in matching(auxiliary.patterns, params, field):
                if path in of:
                    raise UserError(
                        f'{field}: {names(path)[0]} is that of '
                        f'task.learner.auxiliary_optimizers.{of[path]}, too'
                    )
                of[path] = name
        if not of:
            return {_MAIN: (self, params)}
        rest = set(leaves(params)) - set(of)
        owners = {_MAIN: (self, rest)} if rest else {}
        for name, auxiliary in self.auxiliary_optimizers.items():
            owners[name] = (auxiliary, {path for path in of if of[path] == name})
        return {name: (owner, select(params, paths)) for name, (owner, paths) in owners.items()}

    def _is_valid(self, norm: jax.Array, loss: WeightedScalar) -> jax.Array:
        is_valid = jnp.ones((), bool)
        if self.enable_skip_step_on_gradient_anomalies:
            # That of a loss which is not finite goes on into the gradients nearly always.
            is_valid = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        if self.skip_step_gradient_norm_value is not None:
            is_valid &= norm < self.skip_step_gradient_norm_value
        return is_valid

    def _clipped(self, gradients: Any, norm: jax.Array) -> Any:
        if self.clip_gradient_norm_to_value is not None:
            return gradients_lib.with_norm(gradients, self.clip_gradient_norm_to_value, norm)
        if self.clip_gradient_single_norm_to_value is not None:
            most = self.clip_gradient_single_norm_to_value
            return gradients_lib.with_single_norms(gradients, most)
        if self.clip_gradient_to_value is not None:
            return gradients_lib.with_values(gradients, self.clip_gradient_to_value)
        return gradients

    def _norms(
        self, params: Any, gradients: Any, norm: jax.Array, is_valid: jax.Array
    ) -> dict[str, Any]:
        """The norms that are asked for; those of gradients count where the step does."""
        found = {'gradient_norm': norm}
        if self.grad_norm_individual_vars:
            found |= {f'gradient_norm/{at}': n for at, n in gradients_lib.norms(gradients)}
        if self.var_norm_summary:
            found['parameter_norm'] = optax.tree.norm(params)
        if self.var_norm_individual_vars:
            found |= {f'parameter_norm/{at}': n for at, n in gradients_lib.norms(params)}
        valid = is_valid.astype(jnp.float32)
        return {
            name: WeightedScalar(jnp.where(is_valid, n, 0.0), valid) for name, n in found.items()
        }

    def _averaged(self, state: TrainState, trained: Any) -> Any:
        if self.ema_decay is None:
            return {}
        step = state.step.astype(jnp.float32)
        decay = jnp.minimum(self.ema_decay, (1 + step) / (10 + step))
        before = alike(state.ema_params, trained)
        # What is not trained is its own average, to the last bit.
        return replaced(state.ema_params, optax.incremental_update(trained, before, 1 - decay))


def _check_learning_rate(learning_rate: float) -> None:
    if learning_rate < 0:
        raise ValueError(f'learning_rate must not be negative: {learning_rate}')
