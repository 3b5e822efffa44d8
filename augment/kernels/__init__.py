"""Compiled building blocks that readers and writers share: memory by address, JSON tokens. Imported on use."""
