"""What everything else is made of: the trace, findings and annotations, and how facts are computed."""
