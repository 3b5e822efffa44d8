"""Showing a trace in the Perfetto UI, and asking Perfetto's engine; nothing here leaves this machine."""
