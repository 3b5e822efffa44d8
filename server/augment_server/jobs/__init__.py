"""Jobs: from their request to the last artifact."""
