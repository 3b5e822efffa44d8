"""Running the service: ports, flags, metrics, logs, tracing."""
