"""What memory was allocated, and what for."""
