"""GPU work and its launches, kernel families, copy rates and queues."""
