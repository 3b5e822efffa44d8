"""What every room of the service uses: errors, limits, names, observers, security."""
