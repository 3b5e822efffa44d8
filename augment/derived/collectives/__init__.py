"""The collectives of a rank: of which group, how much they move, how far the rank was at each moment."""
