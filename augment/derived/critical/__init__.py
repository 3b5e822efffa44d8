"""The critical path: the graph of moments, the path through it, and what would be saved."""
