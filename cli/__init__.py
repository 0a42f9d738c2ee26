"""The command line: thin over the engine. Commands hold no logic that a library user would want."""
