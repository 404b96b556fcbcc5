"""Warm start: a fresh run that starts from arrays of other runs, selected by rules."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from absl import logging
from etils import epath
from flax.traverse_util import unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.checksums import checksums, leaves_by_name, name_of
from trainer.checkpoints.reader import CheckpointReader
from trainer.experiment import Experiment
from trainer.layers.base import PARAMS
from trainer.layers.lora import is_adapter
from trainer.layers.quantized import SCALE, kernel_shape
from trainer.program.program import Program
from trainer.program.step_functions import Values
from trainer.runtime import processes
from trainer.runtime.directory import write_json
from trainer.state import TrainState, frozen_of
from trainer.symbolic.errors import UserError, prefixed, shortened
from trainer.task import Task
from trainer.warm_start.inheritance import residual_branches
from trainer.warm_start.inheritance_plan import inherited, inherited_adapters
from trainer.warm_start.layered import Layered, layered
from trainer.warm_start.warm_start_plan import Plan, planned
from trainer.warm_start_rules import FILE, Inheritance, Pretrained, Starts, WarmStart, listed

if TYPE_CHECKING:  # Most runs have no use for it.
    from trainer.warm_start.pretrained_reader import PretrainedReader

_FIELD = 'train.init_from_checkpoint'


class Source(NamedTuple):
    """A checkpoint to load arrays from.

    Attributes:
        where: path of `start` in the experiment.
        checkpoint: path of the checkpoint of one step.
        adapts: inherit from another architecture, rather than require the same shapes.
        pretrained: a directory of Hugging Face, in place of a checkpoint.
    """

    where: str
    start: WarmStart
    checkpoint: epath.Path
    adapts: bool = False
    pretrained: Pretrained | None = None

    def reader(
        self, leaves: Mapping[str, Any], task: Task
    ) -> 'CheckpointReader | PretrainedReader':
        """Reads the manifest; raises UserError, also where a directory does not fit the run.

        Args:
            leaves: the arrays of the state of the run, by name.
        """
        if self.pretrained is None:
            with prefixed(self.where):
                return CheckpointReader(self.checkpoint)
        from trainer.warm_start.pretrained_reader import fitting_reader

        return fitting_reader(self.pretrained, leaves, task, self.where)


def warm_start_sources(experiment: Experiment, job_log_dir: epath.PathLike) -> list[Source]:
    """Finds the checkpoints that a run starts from; none if it resumes, or starts without.

    Raises:
        UserError: the experiment names a path without a checkpoint.
    """
    if newest_checkpoint(epath.Path(job_log_dir) / 'checkpoints') is not None:
        return []
    return _sources(experiment)


def _sources(experiment: Experiment) -> list[Source]:
    starts = experiment.train.init_from_checkpoint
    if not isinstance(starts, Inheritance):
        return _listed(_FIELD, starts)
    parent = _source(_FIELD, WarmStart(starts.checkpoint))._replace(adapts=True)
    with prefixed(_FIELD):
        if not CheckpointReader(parent.checkpoint).frozen:
            return [parent]
    return [parent, *_base(starts)]


def _base(parent: Inheritance) -> list[Source]:
    """The sources of the frozen parameters; a child begins at step 0, also where they do not."""
    anew = {'load_optimizer': False, 'load_ema': False, 'load_step': False}
    return [
        each
        if each.pretrained is not None
        else each._replace(start=each.start.clone(deep=True, override=anew))
        for each in _listed(f'{_FIELD}.base', parent.base)
    ]


def _listed(where: str, starts: Starts) -> list[Source]:
    if isinstance(starts, list):
        return [_source(f'{where}[{i}]', start) for i, start in enumerate(starts)]
    return [_source(where, start) for start in listed(starts)]


def _source(where: str, start: WarmStart | Pretrained) -> Source:
    if isinstance(start, Pretrained):
        names = WarmStart(start.directory, ignore=list(start.ignore))
        return Source(where, names, epath.Path(start.directory), pretrained=start)
    found = newest_checkpoint(start.checkpoint)
    if found is None:
        raise UserError(
            f'{where}: there is no checkpoint in {start.checkpoint}: name the directory '
            '`checkpoints` of a run, or the directory of one step in it'
        )
    return Source(where, start, found)


class WarmStartLoader:
    """Loads the state of a warm start. Until `load`, only manifests are read."""

    def __init__(self, experiment: Experiment, sources: Sequence[Source], program: Program) -> None:
        """Maps the run's arrays to the sources'; raises UserError if one lacks an array."""
        self._sources, self._program = sources, program
        self._leaves = leaves_by_name(vars(program.abstract_state))
        self._quantized = {
            name.removesuffix(SCALE)
            for name in self._leaves
            if name.endswith(SCALE) and name.startswith(f'{PARAMS}.')
        }
        for name in self._quantized:  # They are quantized as soon as they are loaded.
            leaf, dtype = self._leaves[name], jax.numpy.dtype(experiment.task.param_dtype)
            shape = kernel_shape(leaf, self._leaves[name + SCALE])
            self._leaves[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=leaf.sharding)
        self._readers = [source.reader(self._leaves, experiment.task) for source in sources]
        self._shapes = {name: tuple(leaf.shape) for name, leaf in self._leaves.items()}
        self._last = experiment.train.num_train_steps
        for source in sources:
            if source.start.load_step and source.checkpoint.name.isdigit():
                self._check_step(source, int(source.checkpoint.name))
        self._plan = self._planned(experiment)
        self._needed = self._plan.needed()
        self._whole = self._plan.whole([each.shapes for each in self._readers])

    def _planned(self, experiment: Experiment) -> Plan:
        pairs = zip(self._sources, self._readers, strict=True)
        sources = [(source.where, source.start, reader.shapes) for source, reader in pairs]
        if self._sources[0].adapts:
            (where, _, shapes), *base = sources
            model = getattr(experiment.task, 'model', None)
            branches = {} if model is None else residual_branches(model)
            with prefixed(self._sources[0].where):
                if not base:
                    return inherited(self._shapes, shapes, branches)
            return inherited_adapters(self._shapes, (where, shapes), base)
        return planned(self._shapes, sources)

    def load(self, key: jax.Array, values: Values) -> TrainState:
        """Loads the initial state of the run; arrays without a source are initialized randomly.

        Raises:
            UserError: a source is damaged, or cannot be read.
        """
        loaded: dict[tuple[int, str], jax.Array] = {}
        for number, source in enumerate(self._sources):
            with prefixed(source.where):
                arrays = self._readers[number].load(self._shardings(number))
            loaded |= {(number, name): array for name, array in arrays.items()}
        donated = {each: array for each, array in loaded.items() if self._is_donated(each)}
        others = {each: array for each, array in loaded.items() if each not in donated}
        state = self._program.init_from(FillIn(self._plan), donated, others, key, values)
        for source in self._sources:
            if source.start.load_step:
                self._check_step(source, int(state.step))
        self._compare_frozen(state)
        return state

    def _compare_frozen(self, state: TrainState) -> None:
        """Logs adapters that were trained beside other frozen parameters."""
        for source, reader in zip(self._sources, self._readers, strict=True):
            known = reader.frozen if isinstance(reader, CheckpointReader) else {}
            frozen = leaves_by_name({PARAMS: unflatten_dict(frozen_of(state))}) if known else {}
            sums = checksums({name: x for name, x in frozen.items() if name in known})
            changed = [name for name, each in sums.items() if known[name][2] != each]
            if changed:
                logging.warning(
                    '%s: the adapters of %s were trained beside another %s, and %d more: their '
                    'results are right beside the same frozen parameters alone',
                    *(source.where, source.checkpoint, changed[0], len(changed) - 1),
                )

    def spent(self) -> Mapping[str, float]:
        """Resource counts of the source whose steps the run continues; empty without one."""
        for source, reader in zip(self._sources, self._readers, strict=True):
            if source.start.load_step:
                return reader.progress.spent
        return {}

    def write_provenance(self, job_log_dir: epath.Path) -> None:
        """Writes the source of each array into the directory of the run, and logs a summary.

        Raises:
            OSError: the directory is not writable.
        """
        found = self._provenance()
        if processes.is_first():
            sources = [str(source.checkpoint) for source in self._sources]
            write_json(job_log_dir / FILE, {'sources': sources, 'arrays': found})
        for number, source in enumerate(self._sources):
            count = sum(each is not None and each['source'] == number for each in found.values())
            logging.info('Loaded %d arrays from %s', count, source.checkpoint)
            self._log_unused(number, found.values())
        new = [name for name, each in found.items() if each is None]
        if new:
            names = shortened(', '.join(new), max_length=300)
            logging.info('%d arrays are new: %s', len(new), names)

    def _log_unused(self, number: int, found: Iterable[dict[str, Any] | None]) -> None:
        """Logs the adapters of a source that have no place in the run."""
        used = {each['name'] for each in found if each is not None and each['source'] == number}
        arrays = layered(self._readers[number].shapes).values()
        stored = {
            name
            for each in arrays
            for name in each.names
            if name.startswith(f'{PARAMS}.') and is_adapter(name)
        }
        if left := sorted(stored - used):
            names = shortened(', '.join(left), max_length=300)
            place = self._sources[number].checkpoint
            logging.info('%d adapters of %s are not used: %s', len(left), place, names)

    def _provenance(self) -> dict[str, dict[str, Any] | None]:
        """Source of each array, layer by layer; None if it is new."""
        taken = {name: layers for name, _, layers in self._plan.arrays}
        found: dict[str, dict[str, Any] | None] = {}
        for stored, each in layered(self._shapes).items():
            layers = taken.get(stored, (None,) * len(each.names))
            for name, layer in zip(each.names, layers, strict=True):
                found[name] = None
                if layer is not None:
                    found[name] = {'source': layer.source, 'name': layer.name}
        return found

    def _check_step(self, source: Source, step: int) -> None:
        if step >= self._last:
            raise UserError(
                f'{source.where}.load_step: {source.checkpoint} has step {step}, and '
                f'train.num_train_steps is {self._last}: no step would be left to train'
            )

    def _shardings(self, number: int) -> dict[str, Any]:
        """Shardings of the arrays of a source, as of the arrays that they become part of."""
        shapes = self._readers[number].shapes
        there = layered(shapes)
        return {
            name: _dividing(
                _without_scans(self._leaves[target].sharding, depth, there[name]), shapes[name]
            )
            for (source, name), (target, depth) in self._needed.items()
            if source == number
        }

    def _is_donated(self, each: tuple[int, str]) -> bool:
        """True if a loaded array becomes an array of the state without any change."""
        target, _ = self._needed[each]
        dtype = str(self._leaves[target].dtype)
        if target in self._quantized:
            return False
        return each in self._whole and self._readers[each[0]].dtypes[each[1]] == dtype


def frozen_parameters(
    experiment: Experiment, program: Program, values: Values
) -> Callable[[], Any]:
    """Makes the loader of the parameters that a run has at its start.

    A checkpoint of adapters lacks the frozen parameters beside them.
    """

    def load() -> Any:
        key = program.random_key(experiment.train.random_seed)
        start = experiment.train.init_from_checkpoint
        if (
            isinstance(start, Inheritance)
            and start.base
            and newest_checkpoint(start.checkpoint) is None
        ):
            sources = _base(start)  # A parent that had adapters alone may be gone.
        else:
            sources = _sources(experiment)
        if sources:
            return WarmStartLoader(experiment, sources, program).load(key, values).params
        return program.init(key, values).params

    return load


@dataclasses.dataclass(frozen=True)
class FillIn:
    """Puts loaded arrays into parts of a state; the `fill` of `Program.init_from`."""

    plan: Plan

    def __call__(self, part: str, drawn: Any, donated: Any, others: Any) -> Any:
        """Returns a part of the state, made of its random initialization and loaded arrays."""
        loaded = {**donated, **others}

        def filled(path: Any, leaf: jax.Array) -> jax.Array:
            return self.plan.filled(name_of(path), leaf, loaded)

        return jax.tree_util.tree_map_with_path(filled, {part: drawn})[part]


def _without_scans(at: NamedSharding, depth: int, stored: Layered) -> NamedSharding:
    """Sharding of an array that differs from another one only in its scanned dimensions."""
    spec = (None,) * len(stored.lengths) + tuple(at.spec)[depth:]
    return NamedSharding(at.mesh, PartitionSpec(*spec))


def _dividing(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """The same sharding; none if it does not divide the shape of another architecture."""
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding
