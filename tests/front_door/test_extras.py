"""Features whose extra is not installed: one message with its name, before anything is written."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paxtune import load_study, search, space
from paxtune.studies.__main__ import main as studies
from search_spaces.tunable_lm import Tiny
from trainer.inputs import ArrayRecordFiles, GrainInput, Input, ParquetFiles, SeqIOInput, TextLines
from trainer.inputs.libraries import libraries
from trainer.program.setup import prepare_inputs
from trainer.symbolic.errors import UserError
from trainer.symbolic.extras import MissingExtraError, needed

SHARED: dict[str, Any] = {'batch_size': 16, 'is_training': True}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a library look as if it were not installed."""

    def hide(library: str) -> None:
        libraries.cache_clear()
        for module in [*sys.modules]:
            if module == library or module.startswith(f'{library}.'):
                monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, library, None)

    return hide


def grain_input(source: Any) -> GrainInput:
    return GrainInput(sources={'a': source}, sequence_length=64, **SHARED)


@pytest.mark.parametrize(
    ('library', 'make', 'message'),
    [
        (
            'tensorflow',
            lambda: SeqIOInput(
                mixture_or_task='c4', split='train', task_feature_lengths={'targets': 64}, **SHARED
            ),
            "data of SeqIO or TFDS needs tensorflow: pip install 'paxtune[seqio]'",
        ),
        (
            'grain',
            lambda: grain_input(TextLines(['my.txt'])),
            "GrainInput needs grain: pip install 'paxtune[grain]'",
        ),
        (
            'array_record',
            lambda: grain_input(ArrayRecordFiles(['my.txt'])),
            "sources.a: ArrayRecordFiles needs array_record: pip install 'paxtune[grain]'",
        ),
        (
            'pyarrow',
            lambda: grain_input(ParquetFiles(['my.txt'])),
            "sources.a: ParquetFiles needs pyarrow: pip install 'paxtune[grain]'",
        ),
    ],
    ids=['tensorflow', 'grain', 'array_record', 'pyarrow'],
)
def test_an_input_names_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: Callable[[str], None],
    library: str,
    make: Callable[[], Input],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('my.txt').write_text('a document\n')
    experiment = Tiny().clone(override={'train_input': make()})
    without(library)
    with pytest.raises(UserError, match=f'^train_input: {re.escape(message)}$'):
        prepare_inputs(experiment)


MINE = """
from search_spaces.tunable_lm import Tiny
from trainer.inputs import GrainInput, ParquetFiles, SeqIOInput


def Rows():
    rows = {'a': ParquetFiles(['my_extras.py'])}
    data = GrainInput(16, True, sources=rows, sequence_length=64)
    return Tiny().clone(override={'train_input': data})


def Task():
    lengths = {'targets': 64}
    data = SeqIOInput(16, True, mixture_or_task='c4', split='train', task_feature_lengths=lengths)
    return Tiny().clone(override={'train_input': data})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('command', 'flags', 'library', 'extra'),
    [
        (search.main, ['--exp=my_extras.Rows'], 'pyarrow', 'grain'),
        (search.main, ['--exp=my_extras.Rows', '--dry_run'], 'pyarrow', 'grain'),
        (search.main, ['--exp=my_extras.Task', '--dry_run'], 'tensorflow', 'seqio'),
        (space.main, ['--exp=my_extras.Task'], 'tensorflow', 'seqio'),
    ],
    ids=['search', 'dry_run', 'dry_run of a task', 'space'],
)
def test_a_command_names_the_extra_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: Callable[[str], None],
    command: Callable[[list[str]], int],
    flags: list[str],
    library: str,
    extra: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path('my_extras.py').write_text(MINE)
    without(library)
    with pytest.raises(UserError, match=rf"needs {library}: .*'paxtune\[{extra}\]'"):
        command(flags)
    assert not Path('runs').exists()


@pytest.mark.parametrize(
    ('library', 'flags'),
    [('ray', ['--engine=ray']), ('submitit', ['--engine=slurm', '--slurm=time=10'])],
)
def test_a_dry_run_names_the_extra_of_an_engine(
    tmp_path: Path, without: Callable[[str], None], library: str, flags: list[str]
) -> None:
    without(library)
    with pytest.raises(MissingExtraError, match=rf'^{flags[0]} needs {library}: pip install'):
        search.main(['--exp=tunable_lm.Tiny', f'--job_log_dir={tmp_path}', '--dry_run', *flags])


def test_a_page_names_its_extra(tmp_path: Path, without: Callable[[str], None]) -> None:
    without('dash')
    with pytest.raises(MissingExtraError, match=r"^studies page needs dash: .*'paxtune\[page\]'$"):
        studies(['page', str(tmp_path)])


def test_importance_and_data_frames_name_their_extras(
    tmp_path: Path, without: Callable[[str], None]
) -> None:
    import pyglove as pg

    import paxtune

    space = {'x': pg.floatv(0.0, 1.0)}
    paxtune.tune(
        lambda x: x, space=space, objective='minimize', num_trials=6, job_log_dir=tmp_path
    ).close()
    without('sklearn')
    without('pandas')
    with load_study(tmp_path) as study:
        figure = paxtune.plots.importances(study)
        with pytest.raises(
            MissingExtraError, match=r'^to_pandas needs pandas: .*paxtune\[pandas\]'
        ):
            study.to_pandas()
    message = 'the importance of decisions needs sklearn: pip install '
    assert message in figure.to_json()
    assert studies(['report', str(tmp_path), f'--out={tmp_path / "report.md"}']) == 0
    assert message in (tmp_path / 'report.md').read_text()


def test_a_library_that_cannot_be_imported_is_no_missing_one() -> None:
    with (
        pytest.raises(UserError, match=r'^TubeInput: math cannot be imported: ') as refused,
        needed('tube', 'TubeInput'),
    ):
        from math import no_such_name  # type: ignore[attr-defined]  # noqa: F401
    assert not isinstance(refused.value, MissingExtraError)
