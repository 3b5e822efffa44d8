"""The collectives of a rank: their groups and bytes, and the progress of the rank over time."""
