"""The job's collectives: waiting, moving data, and how long that should take."""
