"""The critical path: the graph of dependencies, the path through it, and the time that shorter events would save."""
