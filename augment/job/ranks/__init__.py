"""What a job keeps of each rank: the summary and what it is made of."""
