"""How old events become current ones. Pure: no store, no I/O."""

from tailfold.upcasters.chain import Chain, Stage, current_events
from tailfold.upcasters.changes import AddField, Change, ConvertField, DropField, RenameField
from tailfold.upcasters.errors import LiftError, StepsError
from tailfold.upcasters.register import Upcasters
from tailfold.upcasters.steps import Output, Part, Step
from tailfold.upcasters.versions import Standing, stand

__all__ = [
    "AddField",
    "Chain",
    "Change",
    "ConvertField",
    "DropField",
    "LiftError",
    "Output",
    "Part",
    "RenameField",
    "Stage",
    "Standing",
    "Step",
    "StepsError",
    "Upcasters",
    "current_events",
    "stand",
]
