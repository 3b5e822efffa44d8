"""Files that are recorded beside a trace, and the user's own tables: which they are, and what they add to it."""
