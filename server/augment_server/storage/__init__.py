"""What the service keeps: the database, uploads, inputs."""
