"""Memory: the allocators' events, and PyTorch's categories."""
