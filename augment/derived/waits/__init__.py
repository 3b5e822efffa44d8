"""Waiting: idle gaps and their causes; dependencies between calls, work and events."""
