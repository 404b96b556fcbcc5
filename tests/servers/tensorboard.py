"""TensorBoard's own backend, which answers what its pages ask, for tests."""

import sys
import types
from pathlib import Path
from typing import Any, NamedTuple


class Tab(NamedTuple):
    """The content of the HParams tab.

    Attributes:
        domains: of each decision: the values, or (least, greatest).
        metrics: the displayed name of each tag.
        trials: session groups by name.
    """

    domains: dict[str, Any]
    metrics: dict[str, str]
    trials: 'dict[str, Row]'


class Row(NamedTuple):
    """A row of the HParams tab."""

    hparams: dict[str, Any]
    metrics: dict[str, float]
    statuses: list[str]


def multiplexer_of(directory: Path) -> Any:
    """Loads the runs below a directory."""
    # TensorBoard's switch: without TensorFlow it starts 5 seconds earlier.
    sys.modules.setdefault('tensorboard.compat.notf', types.ModuleType('notf'))
    from tensorboard.backend.event_processing import plugin_event_multiplexer

    made = plugin_event_multiplexer.EventMultiplexer()
    made.AddRunsFromDirectory(str(directory))
    made.Reload()
    return made


def hparams_tab(directory: Path) -> Tab:
    """Asks as the HParams tab does."""
    multiplexer = multiplexer_of(directory)
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import (
        api_pb2,
        backend_context,
        get_experiment,
        list_session_groups,
    )

    api: Any = api_pb2
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(directory))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    asked = context.RequestContext(), backend, 'experiment'
    experiment = get_experiment.Handler(*asked, api.GetExperimentRequest()).run()
    statuses = api.Status.values()
    request = api.ListSessionGroupsRequest(slice_size=100, allowed_statuses=statuses)
    groups = list_session_groups.Handler(*asked, request).run().session_groups
    return Tab(
        {info.name: _domain(info) for info in experiment.hparam_infos},
        {info.name.tag: info.display_name for info in experiment.metric_infos},
        {
            group.name: Row(
                {name: _value(value) for name, value in group.hparams.items()},
                {value.name.tag: value.value for value in group.metric_values},
                [api.Status.Name(session.status) for session in group.sessions],
            )
            for group in groups
        },
    )


def _domain(info: Any) -> Any:
    if info.HasField('domain_interval'):
        return info.domain_interval.min_value, info.domain_interval.max_value
    return [_value(value) for value in info.domain_discrete.values]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof('kind'))


def texts(directory: Path, run: str) -> dict[str, str]:
    """Returns the newest text of each name in a run, as the Text tab has it."""
    multiplexer = multiplexer_of(directory)
    found = {}
    for tag in multiplexer.PluginRunToTagToContent('text')[run]:
        newest = multiplexer.Tensors(run, tag)[-1]
        found[tag] = newest.tensor_proto.string_val[0].decode()
    return found
