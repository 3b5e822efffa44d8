"""The calls of the service."""
