"""Pax's decoder-only language models as plain data.

`SpmdLm` has the values of Pax's TransformerLmSpmdAdam. The modules of experiments name the values
that differ: `dataclasses.replace(base, num_layers=13, …)`. An unknown name is an error.

A value may be a decision, which then is `shared.<name>` in the experiment:
`dataclasses.replace(base, model_dims=pg.oneof([1024, 2048]))`. Others follow it.
"""

import dataclasses
from typing import Any, Literal

import pyglove as pg

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.base import Input
from trainer.inputs.synthetic import SyntheticLmInput
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Gaussian,
    LayerNorm,
    Pipeline,
    PositionEmbedding,
    SinusoidalPositions,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Exponential, GlobalNorm, Learner
from trainer.mesh import Mesh
from trainer.symbolic.derived import SHARED, Derived, derived
from trainer.tasks import LanguageModelTask

_NEVER = 10_000_000
"""Pax's default number of steps."""

_IN_PLACE = ('learner', 'position_emb', 'train')
"""Fields that no other value follows: they hold their decisions themselves."""


def adam(learning_rate: float = 1e-3, decay_end: int = 300_000) -> Learner:
    """Pax's Adam: a linear warm-up, then an exponential decay to a tenth at `decay_end`."""
    return Learner(
        learning_rate,
        Exponential(warmup_steps=4000, hold_steps=1, decay_steps=decay_end, final_factor=0.1),
        AdamW(
            b2=0.99, epsilon=1e-6, clip_threshold=1.0, weight_decay=1e-3, weight_decay_on_all=True
        ),
        clipping=GlobalNorm(5.0),
    )


def loop(
    num_train_steps: int = _NEVER,
    eval_interval_steps: int = 100,
    checkpoint_every_n_steps: int = 5000,
    checkpoint_max_to_keep: int = 10,
    summary_interval_steps: int = 100,
) -> TrainLoop:
    """The train loop with Pax's names of its values."""
    return TrainLoop(
        num_train_steps=num_train_steps,
        evaluation=Evaluation(eval_interval_steps),
        checkpoints=Checkpoints(checkpoint_every_n_steps, keep=checkpoint_max_to_keep),
        summary_interval_steps=summary_interval_steps,
        random_seed=1234,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """A pipeline, with Pax's names of its values.

    Attributes:
        num_stages: groups of devices that have their own blocks.
        microbatch_size: rows of all devices that pass through the stages together.
        circular_repeat: turns of each microbatch through the stages.
    """

    num_stages: int
    microbatch_size: int
    circular_repeat: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpmdLm:
    """A pre-norm transformer without biases and with capped logits, on a mesh of devices.

    Attributes:
        num_layers: equal blocks; one is compiled and scanned.
        model_dims: width of the model.
        num_heads: heads of the attention.
        dims_per_head: size of each head.
        hidden_dims: width of the feed-forward layers; None for four times the model's.
        vocab_size: token ids; the embedding is also the output projection.
        max_seq_len: tokens in a row.
        percore_batch_size: rows per device; below 1, a batch has fewer rows than there are devices.
        ici_mesh_shape: devices within a slice, as (replica, data, mdl): the axes `data`, `fsdp` and
            `tensor` here. Parameters are sharded over data and mdl.
        num_slices: slices, connected by a slower network. Each has all parameters, or those of its
            stages.
        stages: of the blocks, each on `ici_mesh_shape` devices; None for no pipeline. In Pax they
            are the first size of a mesh.
        fprop_dtype: dtype of computations.
        use_repeated_layer: scans the blocks, and stores only their inputs for the backward pass.
        save_names: values of the blocks that are stored besides; Pax's SAVE_CONTEXT_AND_OUT_PROJ is
            `('context', 'output')`.
        use_bias: biases in attention and feed-forward layers.
        position_emb: vectors that are added to those of the tokens.
        per_dim_scale: learned scales of the features of queries.
        atten_logit_cap: cap of the logits of attention; None for no cap.
        softmax_cap_logits: cap of the model's logits; None for no cap.
        layernorm_epsilon: epsilon of all normalizations.
        init_std: standard deviation of new kernels and tables; None for 1 / sqrt(inputs).
        scale_sqrt_depth: multiplies embedded tokens by the root of the width.
        learner: Adam, with its learning rate and its schedule.
        train: steps of the run, and the work between them.
    """

    num_layers: int
    model_dims: int
    num_heads: int
    dims_per_head: int = 128
    hidden_dims: int | None = None
    vocab_size: int = 32_000
    max_seq_len: int = 1024
    percore_batch_size: float = 1
    ici_mesh_shape: tuple[int, int, int] = (1, 1, 1)
    num_slices: int = 1
    stages: Stages | None = None
    fprop_dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
    use_repeated_layer: bool = True
    save_names: tuple[Literal['query', 'key', 'value', 'context', 'output'], ...] = ()
    use_bias: bool = False
    position_emb: PositionEmbedding = dataclasses.field(default_factory=SinusoidalPositions)
    per_dim_scale: bool = True
    atten_logit_cap: float | None = 50.0
    softmax_cap_logits: float | None = 30.0
    layernorm_epsilon: float = 1e-6
    init_std: float | None = None
    scale_sqrt_depth: bool = True
    learner: Learner = dataclasses.field(default_factory=adam)
    train: TrainLoop = dataclasses.field(default_factory=loop)

    @property
    def _batch_size(self) -> int:
        """Rows of all devices together."""
        shape, groups = self.ici_mesh_shape, self.num_slices
        if self.stages is not None:
            groups = self.stages.num_stages
        rows: Any = self.percore_batch_size * shape[0] * shape[1] * shape[2] * groups
        return round(rows) if isinstance(rows, float) else rows

    def made(self) -> Experiment:
        """The experiment. Named values that are decisions are in its field `shared`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # PyGlove finds no decisions in tuples.
        if isinstance(self.ici_mesh_shape, tuple):
            values['ici_mesh_shape'] = list(self.ici_mesh_shape)
        shared = {
            name: value
            for name, value in values.items()
            if name not in _IN_PLACE and not pg.is_deterministic(value)
        }
        names = {name: derived(f'{SHARED}.{name}') for name in shared}
        return dataclasses.replace(self, **names)._made(shared)

    def _made(self, shared: dict[str, Any]) -> Experiment:
        # Objects are cloned for each experiment: PyGlove copies none for its first parent.
        return Experiment(
            task=self._task(),
            train_input=self._rows(is_training=True),
            eval_inputs={'eval': self._rows(is_training=False)},
            mesh=self._mesh(),
            train=self.train.clone(deep=True),
            smoke=smoke(),
            shared=shared,
        )

    def _rows(self, is_training: bool) -> Input:
        """The rows of text for training or for evaluation."""
        raise NotImplementedError(type(self).__name__)

    def _task(self) -> LanguageModelTask:
        """The model and its learner."""
        model = TransformerLm(
            embedding=Embedding(
                vocab_size=self.vocab_size,
                dims=self.model_dims,
                scale_sqrt_depth=self.scale_sqrt_depth,
                init=self._init(),
            ),
            stack=Stack(
                [self._block()],
                repeats=self.num_layers,
                scan=_either(self.use_repeated_layer, 'always', 'never'),
                save_names=list(self.save_names),
                pipeline=self._pipeline(),
            ),
            final_norm=self._norm(),
            position_embedding=self.position_emb.clone(deep=True),
            logits_cap=self.softmax_cap_logits,
        )
        learner = self.learner.clone(deep=True)
        return LanguageModelTask(model=model, learner=learner, fprop_dtype=self.fprop_dtype)

    def _mesh(self) -> Mesh:
        """The devices of all slices; parameters are sharded only within a slice."""
        shape, slices = self.ici_mesh_shape, self.num_slices
        sizes = {'data': shape[0], 'fsdp': shape[1], 'tensor': shape[2]}
        if self.stages is None:
            # Only gradients cross the network of the data center.
            return Mesh(**sizes, dcn_data=slices)
        # Only activations cross it, from stage to stage.
        within = self.stages.num_stages // slices
        return Mesh(**sizes, dcn_data=1, stage=within, dcn_stage=slices)

    def _pipeline(self) -> Pipeline | None:
        stages = self.stages
        if stages is None:
            return None
        return Pipeline(
            microbatch_size=stages.microbatch_size, circular_repeat=stages.circular_repeat
        )

    def _block(self) -> TransformerBlock:
        bias = _either(self.use_bias, 'zeros', 'none')
        return TransformerBlock(
            attention=Attention(
                num_heads=self.num_heads,
                head_dim=self.dims_per_head,
                position='none',
                bias=bias,
                logit_cap=self.atten_logit_cap,
                per_dim_scale=self.per_dim_scale,
                init=self._init(),
            ),
            feed_forward=FeedForward(
                hidden_dims=4 * self.model_dims if self.hidden_dims is None else self.hidden_dims,
                bias=bias,
                init=self._init(),
            ),
            attention_norm=self._norm(),
            feed_forward_norm=self._norm(),
        )

    def _norm(self) -> LayerNorm:
        return LayerNorm(epsilon=self.layernorm_epsilon)

    def _init(self) -> Gaussian | None:
        return None if self.init_std is None else Gaussian(self.init_std)


def _either(condition: Any, yes: str, no: str) -> Any:
    if isinstance(condition, Derived):
        return derived(f'{yes!r} if {condition.expression} else {no!r}')
    return yes if condition else no


class SyntheticLm(SpmdLm):
    """A model on random tokens."""

    def _rows(self, is_training: bool) -> Input:
        return SyntheticLmInput(
            batch_size=self._batch_size,
            is_training=is_training,
            sequence_length=self.max_seq_len,
            vocab_size=self.vocab_size,
        )


def smoke() -> dict[str, object]:
    """Overrides for a tiny version of any of these models."""
    rows = {'sequence_length': 8, 'vocab_size': 16, 'num_rows': 8}
    return {
        'task.model.embedding.vocab_size': 16,
        'task.model.embedding.dims': 8,
        'task.model.stack.repeats': 2,
        'task.model.stack.pipeline': None,
        'task.model.stack.layers[0].attention.num_heads': 2,
        'task.model.stack.layers[0].attention.head_dim': 4,
        'task.model.stack.layers[0].feed_forward.hidden_dims': 16,
        'task.fprop_dtype': 'float32',
        'train_input': SyntheticLmInput(batch_size=8, is_training=True, **rows),
        'eval_inputs.eval': SyntheticLmInput(batch_size=8, **rows),
        'mesh': Mesh(),
        'train.num_train_steps': 2,
        'train.evaluation.every': 2,
        'train.checkpoints.every': 2,
        'train.summary_interval_steps': 1,
    }
