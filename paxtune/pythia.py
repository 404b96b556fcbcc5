"""paxtune's algorithms as policies of Vizier's service.

Vizier calls the part of its service that makes suggestions Pythia. Its own Pythia turns on 64-bit
floats for all of JAX, and lets exceptions through that leave suggestions unfinished for ever.
Importing this module imports JAX: `vizier.pythia` does.
"""

import functools
import traceback
from typing import Any

from vizier import pythia
from vizier import pyvizier as vz
from vizier._src.service import (
    grpc_util,
    pythia_service_pb2,
    pythia_service_pb2_grpc,
    service_policy_supporter,
    types,
)
from vizier.service import pyvizier as svz

from paxtune.algorithms import Algorithm, PastTrial, Request
from paxtune.decisions import spec_from_json
from paxtune.parameters import from_parameters, to_parameters
from paxtune.study_record import NAMESPACE, REWARD, StudyRecord
from trainer.serialization import from_json_text


class AlgorithmPolicy(pythia.Policy):
    """Asks the algorithm that the study names, anew for each suggestion."""

    def __init__(self, supporter: pythia.PolicySupporter) -> None:
        self._supporter = supporter

    def suggest(self, request: pythia.SuggestRequest) -> pythia.SuggestDecision:
        """Suggests the trial that comes next."""
        if request.count != 1:
            raise ValueError(f'suggestions are made one at a time, {request.count} were asked for')
        record = StudyRecord.from_metadata(request.study_config.metadata)
        spec = spec_from_json(record.spec)
        read_history = functools.partial(self._read_history, request, spec)
        asked = Request(spec, record.seed, request.max_trial_id + 1, read_history)
        suggestion = _algorithm(record.algorithm).suggest(asked)
        made = vz.TrialSuggestion(parameters=to_parameters(spec, suggestion.decisions))
        if suggestion.parent is not None:
            made.metadata.ns(NAMESPACE)['parent'] = str(suggestion.parent)
        return pythia.SuggestDecision([made])  # type: ignore[list-item]

    def _read_history(self, request: pythia.SuggestRequest, spec: Any) -> list[PastTrial]:
        goal = request.study_config.metric_information.item().goal
        sign = 1.0 if goal == vz.ObjectiveMetricGoal.MAXIMIZE else -1.0
        trials = self._supporter.GetTrials(
            study_guid=request.study_guid, include_intermediate_measurements=False
        )
        return [_past(trial, spec, sign) for trial in trials]

    def early_stop(self, request: pythia.EarlyStopRequest) -> pythia.EarlyStopDecisions:
        """Trials are stopped by paxtune, never by Vizier's service."""
        raise NotImplementedError('trials are stopped by paxtune, not by the service')


def _past(trial: vz.Trial, spec: Any, sign: float) -> PastTrial:
    decisions = from_parameters(spec, trial.parameters.as_dict())
    if trial.infeasible:
        return PastTrial(trial.id, decisions, 'infeasible')
    if trial.final_measurement is None:
        return PastTrial(trial.id, decisions, 'pending')
    score = sign * trial.final_measurement.metrics[REWARD].value
    return PastTrial(trial.id, decisions, 'completed', score)


@functools.lru_cache(maxsize=16)
def _algorithm(text: str) -> Algorithm:
    return from_json_text(text, Algorithm, source="the study's algorithm")


class Pythia(pythia_service_pb2_grpc.PythiaServiceServicer):
    """The part of the service that runs policies.

    Attributes:
        vizier: the service that it is part of, from which policies read the study.
    """

    vizier: types.VizierService

    def Suggest(
        self, request: pythia_service_pb2.SuggestRequest, context: Any = None
    ) -> pythia_service_pb2.SuggestDecision:
        """Runs a policy. Whatever it raises becomes an error of the operation."""
        study = request.study_descriptor.guid
        try:
            supporter = service_policy_supporter.ServicePolicySupporter(study, self.vizier)
            asked = svz.SuggestConverter.from_request_proto(request)
            decision = AlgorithmPolicy(supporter).suggest(asked)
            return svz.SuggestConverter.to_decision_proto(decision)
        except Exception as error:
            text = ''.join(traceback.format_exception(error))
            raise grpc_util.LocalRpcError(RuntimeError(text)) from error
