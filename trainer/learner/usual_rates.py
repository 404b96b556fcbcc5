"""Usual learning rates of optimizers, by the width of the model and the size of batches.

The decay of an average of parameters follows the number of steps.
"""

import math
from typing import Any

from trainer.layers.lora import span_of_rank
from trainer.layers.width import width_span
from trainer.symbolic.usual_values import UsualValue, over, span_at

_BASE = 'task.learner.width_scaling'
_WIDTH = 768
_ADAM_SPREAD = 2.5


def adam_rate(experiment: Any) -> UsualValue:
    """The usual rate of Adam: 6e-4 at width 768, with the power -3/4 of other widths.

    Two thirds of these recipes, with widths from 512 to 12288, lie within a factor of 1.75. The
    interval is wider, since short runs of small models vary more:

    - GPT-3 (Brown et al. 2020, table 2.1): 6e-4 at 768, 2e-4 at 2048, 0.6e-4 at 12288.
    - Pythia (Biderman et al. 2023): 1e-3 at 512. LLaMA (Touvron et al. 2023): 3e-4 at 4096,
      1.5e-4 at 8192. OLMo (Groeneveld et al. 2024): 4e-4 at 2048, 3e-4 at 4096.
    - DeepSeek LLM (Bi et al. 2024): 4.2e-4 at 4096, 3.2e-4 at 8192.

    A model without a width has the default of Kingma & Ba. Low-rank adapters have a higher rate.
    """
    if span_of_rank(experiment) is not None:
        source = 'LoRA (Hu et al. 2021): 1.3e-4 to 5e-4; QLoRA (Dettmers et al. 2023): 1e-4, 2e-4'
        return UsualValue(2e-4, 1e-4, 5e-4, source)
    scaled = over(_width_of_rates(experiment), _adam_rate_at)
    return scaled or UsualValue(
        1e-3, 3e-4, 3e-3, 'default of Kingma & Ba 2015; He et al. 2022 (MAE) and others stay near'
    )


def _adam_rate_at(width: float) -> UsualValue:
    rate = 6e-4 * (_WIDTH / width) ** 0.75
    source = 'by width: GPT-3 (Brown et al. 2020), LLaMA, Pythia, OLMo, DeepSeek LLM'
    return UsualValue(rate, rate / _ADAM_SPREAD, rate * _ADAM_SPREAD, source)


def _width_of_rates(experiment: Any) -> tuple[float, float] | None:
    """The width of the rate: the width of the base where rates are scaled from one."""
    if experiment is not None and experiment.sym_has(f'{_BASE}.base'):
        for path, width in experiment.sym_get(f'{_BASE}.base').sym_items():
            if path.endswith('.dims') and isinstance(width, int):
                return width, width
    return width_span(experiment)


def lion_rate(experiment: Any) -> UsualValue:
    """The usual rate of Lion."""
    source = 'Chen et al. 2023 (Lion): a third to a tenth of AdamW'
    return adam_rate(experiment).scaled(0.18, source)


def sgd_rate(experiment: Any) -> UsualValue:
    """The usual rate of SGD with momentum: 0.1 for 256 examples, in proportion to the batch."""
    return over(_batch(experiment), _sgd_rate_at) or _sgd_rate_at(256)


def _sgd_rate_at(batch: float) -> UsualValue:
    rate = 0.1 * batch / 256
    source = 'linear scaling rule (Goyal et al. 2017), He et al. 2016'
    return UsualValue(rate, rate / 4, rate * 4, source)


def lamb_rate(experiment: Any) -> UsualValue:
    """The usual rate of LAMB: 6.25e-4 for 512 examples, with the root of the batch."""
    return over(_batch(experiment), _lamb_rate_at) or _lamb_rate_at(512)


def _lamb_rate_at(batch: float) -> UsualValue:
    rate = 6.25e-4 * math.sqrt(batch / 512)
    return UsualValue(
        rate, rate / 3, rate * 3, 'You et al. 2020 (LAMB), with the root of the batch'
    )


def own_rate(experiment: Any) -> UsualValue:
    """The usual factor of optimizers that find their own rate."""
    source = 'Defazio & Mishchenko 2023 (D-Adaptation), Mishchenko & Defazio 2024 (Prodigy)'
    return UsualValue(1.0, 0.5, 2.0, source)


def adafactor_rate(experiment: Any, is_relative: bool) -> UsualValue:
    """The usual rate of Adafactor, relative to the size of parameters or as that of Adam."""
    if not is_relative:
        return adam_rate(experiment)
    source = 'Shazeer & Stern 2018, T5 (Raffel et al. 2020), PaLM (Chowdhery et al. 2022)'
    return UsualValue(1e-2, 1e-3, 2e-2, source)


def _batch(experiment: Any) -> tuple[float, float] | None:
    return span_at(experiment, 'train_input.batch_size')


def ema_decay(experiment: Any) -> UsualValue:
    """The usual decay of an average of the parameters, by the number of steps."""
    usual = over(span_at(experiment, 'train.num_train_steps'), _ema_decay_of)
    return usual or UsualValue(0.9999, 0.999, 0.9999, 'Szegedy et al. 2016, EfficientNet')


def _ema_decay_of(steps: float) -> UsualValue:
    value, low, high = (max(0.0, 1 - 1 / (share * steps)) for share in (0.1, 0.05, 0.25))
    return UsualValue(value, low, high, 'Karras et al. 2024 (EDM2): 5 to 25 % of the steps')
