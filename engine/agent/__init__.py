"""The agent runtime: a loop that writes down what it will do before it does it."""
