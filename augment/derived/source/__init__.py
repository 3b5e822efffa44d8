"""What is read of the source again: args as columns, the text of events; and times on another clock."""
