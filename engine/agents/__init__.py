"""The agents that are shipped with tailfold."""
