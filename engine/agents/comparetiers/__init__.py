"""comparetiers: an agent that answers questions about the prices of SaaS products, from a catalogue."""

from tailfold.engine.agents.comparetiers.agent import NAME, comparetiers
from tailfold.engine.agents.comparetiers.catalogue import Catalogue, read_catalogue, shipped
from tailfold.engine.agents.comparetiers.rules import rule

__all__ = ["NAME", "Catalogue", "comparetiers", "read_catalogue", "rule", "shipped"]
