"""Facts of a trace that several analyses share: plain functions of the trace, computed once."""
