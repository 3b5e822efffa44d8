"""The job's tracks on timelines."""
