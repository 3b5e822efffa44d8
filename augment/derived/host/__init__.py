"""What the host did: call stacks, what is around a moment, modules, phases of training."""
