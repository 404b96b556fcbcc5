"""Search algorithms: each suggests trials from a search space and observations.

An algorithm has a file or folder here. All share `encoding`; `external` adapts algorithms of
other libraries. Schedulers and studies lie elsewhere.
"""

from paxtune.algorithms.base import Algorithm as Algorithm
from paxtune.algorithms.base import Exhausted as Exhausted
from paxtune.algorithms.base import KnownValue as KnownValue
from paxtune.algorithms.base import Observation as Observation
from paxtune.algorithms.base import Suggestion as Suggestion
from paxtune.algorithms.base import SuggestionContext as SuggestionContext
from paxtune.algorithms.cma_es import CMAES as CMAES
from paxtune.algorithms.default import Default as Default
from paxtune.algorithms.evolution.crossover import Crossover as Crossover
from paxtune.algorithms.evolution.crossover import LayerRangeCrossover as LayerRangeCrossover
from paxtune.algorithms.evolution.crossover import UniformCrossover as UniformCrossover
from paxtune.algorithms.evolution.mutations import AnyMutation as AnyMutation
from paxtune.algorithms.evolution.mutations import ChangeLayer as ChangeLayer
from paxtune.algorithms.evolution.mutations import ChangeOneDecision as ChangeOneDecision
from paxtune.algorithms.evolution.mutations import DeleteLayer as DeleteLayer
from paxtune.algorithms.evolution.mutations import InsertLayer as InsertLayer
from paxtune.algorithms.evolution.mutations import Mutation as Mutation
from paxtune.algorithms.evolution.mutations import SwapLayers as SwapLayers
from paxtune.algorithms.evolution.nsga2 import NSGA2 as NSGA2
from paxtune.algorithms.evolution.regularized import RegularizedEvolution as RegularizedEvolution
from paxtune.algorithms.external.eagle import Eagle as Eagle
from paxtune.algorithms.external.pyglove import DnaGenerator as DnaGenerator
from paxtune.algorithms.external.vizier import VizierDesigner as VizierDesigner
from paxtune.algorithms.gp.bandit import GPBandit as GPBandit
from paxtune.algorithms.grid import Grid as Grid
from paxtune.algorithms.hill_climbing import HillClimbing as HillClimbing
from paxtune.algorithms.portfolio import Portfolio as Portfolio
from paxtune.algorithms.quasi_random import QuasiRandom as QuasiRandom
from paxtune.algorithms.random_search import RandomSearch as RandomSearch
from paxtune.algorithms.tpe.tpe import TPE as TPE
