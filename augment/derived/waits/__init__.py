"""What waited for what: idle gaps and their causes, dependencies between calls, work and events."""
