"""Who holds the job up, why, and what would be gained."""
