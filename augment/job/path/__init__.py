"""The critical path through the ranks, and replays of the job."""
