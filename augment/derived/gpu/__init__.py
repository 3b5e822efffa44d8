"""What the devices did and who launched it: GPU work, launches, kernel families, rates and queues."""
