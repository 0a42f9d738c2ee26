"""What replay costs: measuring a journal and a fold, on a copy. `measure` is the way in."""

from tailfold.engine.costs.figures import Costs
from tailfold.engine.costs.measuring import measure, measure_scratch
from tailfold.engine.costs.synthetic import STREAM, synthetic_session

__all__ = ["STREAM", "Costs", "measure", "measure_scratch", "synthetic_session"]
