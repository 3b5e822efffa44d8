"""Shows traces in the Perfetto UI and queries Perfetto's engine; no data leaves this machine."""
