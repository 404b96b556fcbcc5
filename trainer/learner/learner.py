import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.layers.lora import adapters_of
from trainer.learner import stochastic_rounding
from trainer.learner.clipping import Clipping, GlobalNorm
from trainer.learner.freezing import Freeze
from trainer.learner.norms import NormMetrics
from trainer.learner.optimizers import AdamW, Mask, Matrices, Optimizer, Rates, usual_rate
from trainer.learner.paths import (
    Path,
    check_patterns,
    leaves,
    matching,
    names,
    replaced,
    select,
    subtree,
    widened,
)
from trainer.learner.schedules import Constant, Cosine, Noam, Schedule
from trainer.learner.skipping import SkipNonFinite, unless_skipped
from trainer.learner.usual_rates import ema_decay
from trainer.learner.width_scaling import WidthScaling
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import (
    Component,
    Number,
    OptionalNumber,
    require_fraction,
    require_not_negative,
    require_positive,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice

_MAIN = 'main'
"""The name of the learner's own optimizer."""


@dataclasses.dataclass(frozen=True)
class Update:
    """The result of one step of a learner.

    Attributes:
        before: the state before the step.
        opt_state: after the step; unchanged by a skipped step.
        is_valid: False if the update is skipped (e.g. non-finite gradients).
        metrics: the learning rate, the norm of the gradients, and the number of skipped steps.
    """

    before: TrainState
    params: Any
    opt_state: Any
    ema_params: Any
    is_valid: jax.Array
    metrics: Metrics

    def state(self, non_trainable: Any) -> TrainState:
        """The state after the step. A skipped step increases only the step count."""
        before = self.before
        old = before.params, before.non_trainable, before.ema_params
        new = self.params, non_trainable, self.ema_params
        params, non_trainable, averages = jax.tree.map(
            lambda n, o: jnp.where(self.is_valid, n, o), new, old
        )
        return dataclasses.replace(
            before,
            step=before.step + 1,
            params=params,
            non_trainable=non_trainable,
            opt_state=self.opt_state,
            ema_params=averages,
        )


class AuxiliaryOptimizer(Component):
    """An optimizer for some of the parameters, with its own learning rate.

    Attributes:
        patterns: regular expressions that match whole paths of parameters, layer by layer:
            `stack.layers_3.attention.query`.
        learning_rate: peak learning rate; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: turns gradients into updates.
    """

    patterns: list[str]
    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        return super().usual_values(experiment) | _usual_rate(self, experiment)

    def check(self) -> None:
        require_not_negative(self, 'learning_rate')
        if not self.patterns:
            raise ValueError('patterns must not be empty')
        check_patterns(self.patterns, 'patterns')


class Learner(Component):
    """Gradients -> clipping -> optimizer -> weight decay -> new parameters.

    Attributes:
        learning_rate: peak learning rate; the schedule multiplies it.
        schedule: the factor at each step.
        optimizer: turns gradients into updates.
        clipping: limits the gradients; None clips nothing.
        skip: skips invalid steps; None skips none.
        freeze: selects the parameters that are trained; None trains all.
        microbatches: accumulates gradients over this many equal parts of each batch.
        ema_decay: evaluate and decode with an exponential moving average of the parameters. A
            step keeps this share of it, or less at the beginning: min(decay, (1 + t) / (10 + t)).
            None keeps no average.
        auxiliary_optimizers: other optimizers by name, each for the parameters that its patterns
            match; `optimizer` has the rest.
        norm_metrics: norms to log in addition to `gradient_norm`.
        width_scaling: scales initial values and learning rates with the width of the model, so
            that the best learning rate stays the same; None scales nothing.
        stochastic_rounding: rounds parameters in bfloat16 up or down at random after each update,
            by the seed and the step (Gupta et al. 2015). Then small updates count on average.
        offload_state: keeps the state of the optimizer in the memory of the host between steps. A
            step copies it to the devices, and back.
    """

    learning_rate: Number
    schedule: Schedule = Constant()
    optimizer: Optimizer = AdamW()
    clipping: Clipping | None = GlobalNorm(1.0)
    skip: SkipNonFinite | None = SkipNonFinite()
    freeze: Freeze | None = None
    microbatches: int = 1
    ema_decay: OptionalNumber = None
    auxiliary_optimizers: dict[str, AuxiliaryOptimizer] = {}
    norm_metrics: NormMetrics | None = None
    width_scaling: WidthScaling | None = None
    stochastic_rounding: bool = False
    offload_state: bool = False

    usual = {
        'optimizer': choice(AdamW, 'Loshchilov & Hutter 2019, LLaMA, ViT'),
        'schedule': choice(Cosine, 'Loshchilov & Hutter 2017, GPT-3, LLaMA, ViT'),
        'clipping': choice(GlobalNorm, 'Pascanu et al. 2013, GPT-3, LLaMA, ViT'),
    }

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        stated = super().usual_values(experiment) | {'ema_decay': ema_decay(experiment)}
        return stated | _usual_rate(self, experiment)

    def check(self) -> None:
        require_not_negative(self, 'learning_rate')
        require_positive(self, 'microbatches')
        require_fraction(self, 'ema_decay')
        if _MAIN in self.auxiliary_optimizers:
            raise ValueError(f'auxiliary_optimizers must not be called {_MAIN!r}: `optimizer` is')
        if self.ema_decay is not None and self._has_own_averages():
            raise ValueError('ema_decay must be None: the optimizer has an average of its own')
        if self.width_scaling is not None:
            for owner in (self, *self.auxiliary_optimizers.values()):
                if not owner.optimizer.is_scale_invariant():
                    raise ValueError(
                        'width_scaling has the rules of Adam: it needs AdamW, Lion or Muon, not '
                        f'{type(owner.optimizer).__name__}'
                    )
                if owner.optimizer.weight_decay and owner.optimizer.weight_decay_on_all:
                    raise ValueError(
                        'width_scaling gives norms a scale that weight_decay_on_all would decay: '
                        'set it to False'
                    )

    def trained(self, params: Any, optimizer: str | None = None) -> Any:
        """The trained part of a tree of parameters: all of it, or the part of one optimizer.

        In a tree with adapters, they alone are trained.

        Raises:
            UserError: `freeze` does not fit the parameters, or there is no such optimizer.
        """
        params = adapters_of(params)
        trained = params if self.freeze is None else self.freeze.trained(params)
        if optimizer is None:
            return trained
        parts = self._parts(trained)
        if optimizer not in parts:
            raise UserError(
                f'task.learner: no optimizer called {optimizer!r} has parameters, only '
                f'{", ".join(parts)}: name it in task.learner.auxiliary_optimizers'
            )
        return parts[optimizer][1]

    def init(self, params: Any, decay_mask: Mask, matrices: Matrices | None = None) -> Any:
        """The optimizer state for new parameters; with several optimizers, by their names."""
        states = {}
        trained = self.trained(params)
        if self.stochastic_rounding and not stochastic_rounding.applies(trained):
            raise UserError(
                'task.learner.stochastic_rounding rounds trained parameters in bfloat16, and there '
                "is none: set task.param_dtype='bfloat16', or it to False"
            )
        for name, (owner, part) in self._parts(trained).items():
            # Some keep the rate in their state.
            rate = owner.learning_rate * owner.schedule.factor(jnp.zeros((), jnp.int32))
            of_part = None if matrices is None else subtree(matrices, part)
            made = owner.optimizer.make(rate, subtree(decay_mask, part), matrices=of_part)
            states[name] = made.init(widened(part))
        return states if self.auxiliary_optimizers else states[_MAIN]

    def init_ema(self, params: Any) -> Any:
        """The averages of new parameters; {} without any."""
        has_averages = self.ema_decay is not None or self._has_own_averages()
        return jax.tree.map(jnp.copy, widened(adapters_of(params))) if has_averages else {}

    def _has_own_averages(self) -> bool:
        owners = (self, *self.auxiliary_optimizers.values())
        return any(owner.optimizer.has_own_average() for owner in owners)

    def update(
        self,
        state: TrainState,
        gradients: Any,
        loss: WeightedScalar,
        decay_mask: Mask,
        rates: Rates | None = None,
        matrices: Matrices | None = None,
        only: str | None = None,
        ema_params: Any = None,
        key: jax.Array | None = None,
    ) -> Update:
        """Applies one step.

        Args:
            state: before the step.
            gradients: of the trained parameters.
            loss: of the batch.
            decay_mask: True where weight decay applies.
            rates: factors of the learning rate by parameter; None for 1.
            matrices: the axes of hidden matrices; None leaves them to optimizers without them.
            only: the name of an optimizer: updates only its part, which has the gradients.
            ema_params: averages before the step, if it has several updates, which count as one in
                them; None for those of `state`.
            key: of the step, which `stochastic_rounding` needs.
        """
        params = self.trained(state.params, only)
        norm = optax.tree.norm(gradients)
        is_valid = jnp.ones((), bool) if self.skip is None else self.skip.is_valid(norm, loss)
        metrics = self._norms(params, gradients, norm, is_valid)
        metrics['skipped_steps'] = Count(1 - is_valid.astype(jnp.float32))
        if self.skip is not None and self.skip.max_norm is not None:
            is_large = ~is_valid & jnp.isfinite(norm) & jnp.isfinite(loss.total)
            metrics['skipped_for_norm'] = Count(is_large.astype(jnp.float32))
        several = bool(self.auxiliary_optimizers)
        before = state.opt_state if several else {_MAIN: state.opt_state}
        after, evaluated = dict(before), params
        for name, (owner, part) in self._parts(self.trained(state.params)).items():
            if only not in (None, name):
                continue
            own = subtree(gradients, part)
            if self.clipping is not None:
                own = self.clipping.clip(own, norm)
            learning_rate = owner.learning_rate * owner.schedule.factor(state.step)
            own_rates, own_matrices = (
                None if tree is None else subtree(tree, part) for tree in (rates, matrices)
            )
            optimizer = owner.optimizer.make(
                learning_rate, subtree(decay_mask, part), own_rates, own_matrices
            )
            given = own, before[name], widened(part)
            if self.skip is None:
                updates, after[name] = optimizer.update(*given)
            else:
                updates, after[name] = unless_skipped(optimizer.update, *given, is_valid)
            if self.stochastic_rounding:
                assert key is not None
                part = stochastic_rounding.updated(part, updates, key)
            else:
                part = optax.apply_updates(part, updates)
            params = replaced(params, part)
            if owner.optimizer.has_own_average():
                part = owner.optimizer.average(after[name], part)
            evaluated = replaced(evaluated, part)
            suffix = '' if name == _MAIN else f'/{name}'
            one = jnp.ones((), jnp.float32)
            metrics[f'learning_rate{suffix}'] = WeightedScalar(learning_rate, one)
        opt_state = after if several else after[_MAIN]
        averages = self._averaged(state, params, ema_params)
        if self._has_own_averages():
            averages = replaced(state.ema_params, widened(evaluated))
        params = replaced(state.params, params)
        return Update(state, params, opt_state, averages, is_valid, metrics)

    def _parts(self, params: Any) -> dict[str, tuple[Any, Any]]:
        """Divides the trained parameters: {optimizer name: (optimizer's owner, part)}."""
        of: dict[Path, str] = {}
        for name, auxiliary in self.auxiliary_optimizers.items():
            field = f'task.learner.auxiliary_optimizers.{name}.patterns'
            for path in matching(auxiliary.patterns, params, field):
                if path in of:
                    raise UserError(
                        f'{field}: {names(path)[0]} also belongs to '
                        f'task.learner.auxiliary_optimizers.{of[path]}'
                    )
                of[path] = name
        if not of:
            return {_MAIN: (self, params)}
        rest = set(leaves(params)) - set(of)
        owners = {_MAIN: (self, rest)} if rest else {}
        for name, auxiliary in self.auxiliary_optimizers.items():
            owners[name] = (auxiliary, {path for path in of if of[path] == name})
        return {name: (owner, select(params, paths)) for name, (owner, paths) in owners.items()}

    def _norms(
        self, params: Any, gradients: Any, norm: jax.Array, is_valid: jax.Array
    ) -> dict[str, Any]:
        """The norms as metrics; a skipped step has no weight in them."""
        found = {'gradient_norm': norm}
        if self.norm_metrics is not None:
            found |= self.norm_metrics.measure(params, gradients)
        valid = is_valid.astype(jnp.float32)
        return {
            name: WeightedScalar(jnp.where(is_valid, n, 0.0), valid) for name, n in found.items()
        }

    def _averaged(self, state: TrainState, trained: Any, ema_params: Any) -> Any:
        if self.ema_decay is None:
            return {}
        step = state.step.astype(jnp.float32)
        decay = jnp.minimum(self.ema_decay, (1 + step) / (10 + step))
        before = subtree(state.ema_params if ema_params is None else ema_params, trained)
        # The average of a frozen parameter is the parameter, to the last bit.
        return replaced(state.ema_params, optax.incremental_update(trained, before, 1 - decay))


def _usual_rate(owner: Component, experiment: Any) -> dict[str, UsualValue]:
    """The usual value of `learning_rate`, if that of the optimizer is known."""
    rate = usual_rate(owner.sym_getattr('optimizer'), experiment)
    if isinstance(owner.sym_getattr('schedule'), Noam):
        rate = UsualValue(1.0, 0.5, 2.0, 'Vaswani et al. 2017, section 5.3')
    return {} if rate is None else {'learning_rate': rate}
