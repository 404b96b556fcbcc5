"""Warm starts: a fresh run that begins with what others have learnt. What is taken, rules say."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoints import manifest
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.checksums import name_of
from trainer.checkpoints.reader import CheckpointReader
from trainer.checkpoints.warm_start_plan import Layered, Plan, layered, planned
from trainer.experiment import Experiment
from trainer.program.program import Program, Values
from trainer.runtime import processes
from trainer.runtime.directory import write_json
from trainer.state import TrainState
from trainer.symbolic.errors import UserError, shortened
from trainer.warm_start_rules import FILE, WarmStart

_FIELD = 'train.init_from_checkpoint'


class Source(NamedTuple):
    """A checkpoint that something is taken from.

    Attributes:
        where: the path, in the experiment, of what says what to take.
        start: that itself.
        checkpoint: the checkpoint of one step.
    """

    where: str
    start: WarmStart
    checkpoint: epath.Path


def warm_start_sources(experiment: Experiment, job_log_dir: epath.PathLike) -> list[Source]:
    """What a run begins with; nothing where it draws everything, or resumes.

    Raises:
        UserError: the experiment names a place where there is no checkpoint.
    """
    asked = experiment.train.init_from_checkpoint
    if not asked or newest_checkpoint(epath.Path(job_log_dir) / 'checkpoints') is not None:
        return []
    if isinstance(asked, str):
        return [_source(_FIELD, WarmStart(asked))]
    return [_source(f'{_FIELD}[{i}]', start) for i, start in enumerate(asked)]


def _source(where: str, start: WarmStart) -> Source:
    found = newest_checkpoint(start.checkpoint)
    if found is None:
        raise UserError(
            f'{where}: there is no checkpoint in {start.checkpoint}: name the directory '
            '`checkpoints` of a run, or that of one step in there'
        )
    return Source(where, start, found)


class WarmStartLoader:
    """A warm start that fits a run. Nothing but descriptions has been read so far."""

    def __init__(self, experiment: Experiment, sources: Sequence[Source], program: Program) -> None:
        """Decides which arrays come from where.

        Raises:
            UserError: a source cannot be read, or has not what is to be loaded.
        """
        self._sources, self._program = sources, program
        self._stored = [_opened(source) for source in sources]
        self._abstract = vars(program.abstract_state)
        self._shapes = manifest.shapes(self._abstract)
        self._plan = planned(
            self._shapes,
            [
                (s.where, s.start, each.shapes)
                for s, each in zip(sources, self._stored, strict=True)
            ],
        )
        self._last = experiment.train.num_train_steps
        for source in sources:
            if source.start.load_step and source.checkpoint.name.isdigit():
                self._check_step(source, int(source.checkpoint.name))

    def load(self, key: jax.Array, values: Values) -> TrainState:
        """The state that the run begins with; what comes from nowhere is drawn.

        Raises:
            UserError: a source is damaged, or cannot be read.
        """
        loaded: dict[tuple[int, str], jax.Array] = {}
        for number, source in enumerate(self._sources):
            try:
                arrays = self._stored[number].load(self._shardings(number))
            except UserError as error:
                raise UserError(f'{source.where}: {error}') from error
            loaded |= {(number, name): array for name, array in arrays.items()}
        whole = self._plan.whole([each.shapes for each in self._stored])
        given = {each: array for each, array in loaded.items() if self._is_given(each, whole)}
        looked_at = {each: array for each, array in loaded.items() if each not in given}
        state = self._program.init_from(Filling(self._plan), given, looked_at, key, values)
        for source in self._sources:
            if source.start.load_step:
                self._check_step(source, int(state.step))
        return state

    def spent(self) -> Mapping[str, float] | None:
        """What the source had spent whose steps the run goes on counting; None without one."""
        for source, stored in zip(self._sources, self._stored, strict=True):
            if source.start.load_step:
                spent: Mapping[str, float] = stored.progress['spent']
                return spent
        return None

    def write_provenance(self, job_log_dir: epath.Path) -> None:
        """Writes where everything comes from into the job's directory, and sums it up in the log.

        Raises:
            OSError: it cannot be written.
        """
        found = self._provenance()
        if processes.is_first():
            sources = [str(source.checkpoint) for source in self._sources]
            write_json(job_log_dir / FILE, {'sources': sources, 'arrays': found})
        for number, source in enumerate(self._sources):
            count = sum(each is not None and each['source'] == number for each in found.values())
            logging.info('Took %d arrays of %s', count, source.checkpoint)
        drawn = [name for name, each in found.items() if each is None]
        if drawn:
            shown = shortened(', '.join(drawn), most=300)
            logging.info('%d arrays are new: %s', len(drawn), shown)

    def _provenance(self) -> dict[str, dict[str, Any] | None]:
        """Where each array comes from, layer by layer; None where it is new."""
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
                f'{source.where}.load_step: {source.checkpoint} is of step {step}, and '
                f'train.num_train_steps is {self._last}: nothing would be left to train'
            )

    def _shardings(self, number: int) -> dict[str, Any]:
        """How the arrays of a source are to lie on the mesh: as what they go into."""
        leaves = jax.tree_util.tree_leaves_with_path(self._abstract)
        here = {name_of(path): leaf.sharding for path, leaf in leaves}
        there = layered(self._stored[number].shapes)
        return {
            name: _without_runs(here[target], depth, there[name])
            for (source, name), (target, depth) in self._plan.needed().items()
            if source == number
        }

    def _is_given(self, each: tuple[int, str], whole: set[tuple[int, str]]) -> bool:
        """Whether what was read becomes part of the state, bit by bit and in its place."""
        target, _ = self._plan.needed()[each]
        leaves = jax.tree_util.tree_leaves_with_path(self._abstract)
        dtypes = {name_of(path): str(leaf.dtype) for path, leaf in leaves}
        return each in whole and self._stored[each[0]].dtypes[each[1]] == dtypes[target]


@dataclasses.dataclass(frozen=True)
class Filling:
    """Puts what was loaded into parts of a state, as `Program.init_from` asks for it."""

    plan: Plan

    def __call__(self, part: str, drawn: Any, given: Any, looked_at: Any) -> Any:
        """The part of that name, of what was drawn for it."""
        loaded = {**given, **looked_at}

        def filled(path: Any, leaf: jax.Array) -> jax.Array:
            return self.plan.filled(name_of(path), leaf, loaded)

        return jax.tree_util.tree_map_with_path(filled, {part: drawn})[part]


def _opened(source: Source) -> CheckpointReader:
    try:
        return CheckpointReader(source.checkpoint)
    except UserError as error:
        raise UserError(f'{source.where}: {error}') from error


def _without_runs(at: NamedSharding, depth: int, stored: Layered) -> NamedSharding:
    """How an array lies that is as another one but for the scanned runs it is in."""
    spec = (None,) * len(stored.lengths) + tuple(at.spec)[depth:]
    return NamedSharding(at.mesh, PartitionSpec(*spec))
