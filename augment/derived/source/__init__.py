"""Second readings of the source: args as columns and the text of events; also times on another clock."""
