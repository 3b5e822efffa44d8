"""Pure functions of arrays: intervals, orders, statistics, equal sequences. They know nothing of traces."""
