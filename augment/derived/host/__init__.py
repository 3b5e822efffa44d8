"""The host: call stacks, enclosing slices, modules, phases of training."""
