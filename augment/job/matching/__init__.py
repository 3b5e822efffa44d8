"""Which collectives of different ranks are one, and the ranks' clocks."""
