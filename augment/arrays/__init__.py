"""Pure functions of arrays: intervals, orders, statistics, equal sequences. They do not depend on traces."""
