"""What is made of metrics: frames, tables and reports."""
