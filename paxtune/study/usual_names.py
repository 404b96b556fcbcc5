"""Usual values of arguments of functions, by their common names.

A function has no components that state usual values, so only the names of its arguments are known.
A name is compared without its case; in a space of dicts, only the last name of a path counts.
"""

from collections.abc import Mapping

import pyglove as pg

from paxtune.search_space.labels import parameter_path
from paxtune.search_space.space import Space
from trainer.symbolic import recipes
from trainer.symbolic.usual_values import UsualValue

_GRADIENT_NAMES: Mapping[UsualValue, str] = {
    recipes.RATE: 'lr learning_rate init_lr peak_lr base_lr max_lr',
    recipes.B1: 'b1 beta1 beta_1 adam_beta1 adam_b1',
    recipes.B2: 'b2 beta2 beta_2 adam_beta2 adam_b2',
    recipes.EPSILON: 'eps epsilon adam_eps adam_epsilon',
    recipes.WEIGHT_DECAY: 'wd weight_decay',
    recipes.MOMENTUM: 'momentum',
    recipes.NO_PENALTY: 'l1 l1_reg l1_weight l2 l2_reg l2_weight',
    recipes.DROPOUT: 'dropout dropout_rate dropout_prob dropout_p drop_rate',
    recipes.LABEL_SMOOTHING: 'label_smoothing smoothing',
    recipes.WARMUP_SHARE: 'warmup_ratio warmup_fraction warmup_proportion warmup_share',
    recipes.CLIP_NORM: 'clip_norm grad_clip gradient_clip grad_clip_norm max_grad_norm',
    recipes.BATCH_SIZE: 'batch_size batchsize train_batch_size',
    recipes.EMA_DECAY: 'ema_decay ema',
}
_SGD_NAMES: Mapping[UsualValue, str] = {
    recipes.SGD_RATE: _GRADIENT_NAMES[recipes.RATE],
    recipes.L2: f'{_GRADIENT_NAMES[recipes.WEIGHT_DECAY]} l2 l2_reg l2_weight',
}
_BOOSTING_NAMES: Mapping[UsualValue, str] = {
    recipes.SHRINKAGE: 'learning_rate eta lr',
    recipes.TREE_DEPTH: 'max_depth',
    recipes.SUBSAMPLE: 'subsample bagging_fraction',
}
_OF_BOOSTING = frozenset(
    (
        *('n_estimators', 'num_boost_round', 'num_leaves', 'max_depth', 'min_child_weight'),
        *('min_child_samples', 'subsample', 'colsample_bytree'),
    )
)


def of_arguments(space: Space) -> dict[str, UsualValue]:
    """Returns the usual values of decisions whose names are common, by the id of the decision.

    With boosted trees, `learning_rate` is their shrinkage. With `momentum`, and no `beta1`, it is
    the rate of SGD.

    Example:
        >>> space = Space(pg.Dict(lr=pg.floatv(1e-5, 1.0, 'log'), size=pg.floatv(1.0, 9.0)))
        >>> {id_: usual.value for id_, usual in of_arguments(space).items()}
        {'lr': 0.001}
    """
    names = {id_: _name(id_) for id_ in space.ids}
    known = _by_name(_GRADIENT_NAMES)
    if _OF_BOOSTING & {*names.values()}:
        known = _by_name(_BOOSTING_NAMES)
    elif 'momentum' in names.values() and not {*names.values()} & {'b1', 'beta1', 'beta_1'}:
        known |= _by_name(_SGD_NAMES)
    return {id_: known[name] for id_, name in names.items() if name in known}


def _by_name(table: Mapping[UsualValue, str]) -> dict[str, UsualValue]:
    return {name: usual for usual, names in table.items() for name in names.split()}


def _name(id_: str) -> str:
    keys = pg.KeyPath.parse(parameter_path(id_)).keys
    return str(keys[-1]).lower().replace('-', '_') if keys else ''
