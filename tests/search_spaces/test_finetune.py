"""The search over adapters of a pretrained model, on a tiny one with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from paxtune import search
from paxtune.storage.open_study import load_study
from paxtune.studies.__main__ import main as run_studies
from search_spaces import lm
from tests.factories.tokenizer_files import make_tokenizer
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.symbolic.errors import UserError

DIMS, HIDDEN, LAYERS = 32, 64, 2


def make_pretrained(folder: Path) -> Path:
    """A directory of a tiny random Llama, with a tokenizer of bytes."""
    make_tokenizer(folder)
    size = vocabulary_at(str(folder)).vocab_size
    config: dict[str, Any] = {
        'architectures': ['LlamaForCausalLM'],
        'hidden_act': 'silu',
        'hidden_size': DIMS,
        'intermediate_size': HIDDEN,
        'num_attention_heads': 2,
        'num_key_value_heads': 2,
        'num_hidden_layers': LAYERS,
        'rms_norm_eps': 1e-5,
        'rope_theta': 10000.0,
        'tie_word_embeddings': True,
        'vocab_size': size,
    }
    (folder / 'config.json').write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        'model.embed_tokens.weight': (size, DIMS),
        'model.norm.weight': (DIMS,),
    }
    for number in range(LAYERS):
        layer = f'model.layers.{number}'
        shapes |= {f'{layer}.self_attn.{name}_proj.weight': (DIMS, DIMS) for name in 'qkvo'}
        shapes |= {f'{layer}.mlp.{name}_proj.weight': (HIDDEN, DIMS) for name in ('gate', 'up')}
        shapes[f'{layer}.mlp.down_proj.weight'] = (DIMS, HIDDEN)
        for name in ('input', 'post_attention'):
            shapes[f'{layer}.{name}_layernorm.weight'] = (DIMS,)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(arrays, folder / 'model.safetensors')
    return folder


@pytest.mark.slow
def test_a_search_starts_from_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(lm.PRETRAINED, str(make_pretrained(tmp_path / 'model')))
    flags = ['--exp=lm.FinetuneTunable', '--num_trials=2', f'--job_log_dir={tmp_path / "study"}']
    small = {f'train_input.inputs.{name}': 8 for name in ('summary', 'signature')}
    changes = [f'{path}.num_pairs={count}' for path, count in small.items()]
    changes += [f'{path}.sequence_length=300' for path in (*small, 'eval_inputs.eval')]
    changes += ['eval_inputs.eval.num_pairs=4', 'train.num_train_steps=4']
    changes += ['train.evaluation.every=2', 'train.checkpoints.every=2']
    assert search.main([*flags, '--set', *changes]) == 0
    study = load_study(tmp_path / 'study')
    for trial in study.trials:
        first, last = trial.measurements
        assert last.metrics['eval/log_pplx'] < first.metrics['eval/log_pplx']
    capfd.readouterr()
    _writes_its_weights(tmp_path, lambda: capfd.readouterr().out)


def _writes_its_weights(tmp_path: Path, shown: Callable[[], str]) -> None:
    """The best trial becomes a model for `transformers`, on which lm-eval runs."""
    study, out = str(tmp_path / 'study'), tmp_path / 'tuned'
    run_studies(['weights', study, f'--out={out}', '--json'])
    made = json.loads(shown())
    assert made == {'directory': str(out), 'kind': 'LlamaForCausalLM', 'step': 4}
    with safetensors.safe_open(out / 'model.safetensors', 'numpy') as tuned:
        before = safetensors.numpy.load_file(tmp_path / 'model' / 'model.safetensors')
        assert {*tuned.keys()} == {*before}
        changed = {
            name
            for name in before
            if not np.allclose(tuned.get_tensor(name), before[name], atol=1e-6)
        }
    assert changed and all('_proj' in name for name in changed)
    program = tmp_path / 'fake_lm_eval'
    program.write_text(
        f'#!/bin/sh\nls "${{2#*=pretrained=}}" > {tmp_path}/files; echo "$@" > {tmp_path}/args\n'
    )
    program.chmod(0o755)
    flags = ['--trial=1', '--tasks=arc_easy', '--flags=--limit=7', f'--program={program}']
    run_studies(['lm_eval', study, *flags, '--json'])
    assert json.loads(shown())['directory'].endswith('/lm_eval')
    assert {'config.json', 'tokenizer.json'} <= {*(tmp_path / 'files').read_text().split()}
    args = (tmp_path / 'args').read_text()
    assert args.startswith('--model=hf --model_args=pretrained=')
    assert '--tasks=arc_easy' in args and args.endswith('lm_eval --limit=7\n')
    with pytest.raises(UserError, match=r'--program: there is no nothing_here\. Install lm-eval'):
        run_studies(['lm_eval', study, '--tasks=arc_easy', '--program=nothing_here'])


def test_a_directory_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lm.PRETRAINED, str(tmp_path))
    with pytest.raises(UserError, match=f'{tmp_path} has no config.json'):
        search.main(['--exp=lm.FinetuneTunable', f'--job_log_dir={tmp_path / "study"}'])
    assert not (tmp_path / 'study').exists()


def test_a_search_without_a_directory_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(lm.PRETRAINED, raising=False)
    with pytest.raises(UserError, match=r"train_input: .*'\$PRETRAINED_MODEL': it cannot be read"):
        search.main(['--exp=lm.FinetuneTunable', f'--job_log_dir={tmp_path / "study"}'])
