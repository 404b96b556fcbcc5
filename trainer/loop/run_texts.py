"""Texts about a run for TensorBoard: its experiment, and its parameters."""

from typing import Any

import jax

from trainer.experiment import Experiment


def run_texts(experiment: Experiment, params: Any) -> dict[str, str]:
    """Describes a run in Markdown, by the name of each text.

    Args:
        experiment: a concrete one.
        params: its parameters, or their shapes.
    """
    text = experiment.format(compact=False, hide_default_values=True)
    code = ''.join(f'    {line}\n' for line in text.splitlines())
    return {
        'experiment': f'Fields that differ from their defaults:\n\n{code}',
        'parameters': parameter_table(params),
    }


def parameter_table(params: Any) -> str:
    """Renders parameters as a table in Markdown.

    Example:
        >>> print(parameter_table({'dense': {'b': jax.ShapeDtypeStruct((8,), 'float32')}}))
        | parameter | shape | type | count |
        | --- | --- | --- | --- |
        | dense.b | 8 | float32 | 8 |
        | **total** | | | **8** |
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    rows = [
        f'| {jax.tree_util.keystr(path, simple=True, separator=".")} '
        f'| {"×".join(map(str, leaf.shape)) or "scalar"} | {leaf.dtype} | {leaf.size:,} |'
        for path, leaf in leaves
    ]
    total = f'| **total** | | | **{sum(leaf.size for _, leaf in leaves):,}** |'
    heading = ['| parameter | shape | type | count |', '| --- | --- | --- | --- |']
    return '\n'.join([*heading, *rows, total])
