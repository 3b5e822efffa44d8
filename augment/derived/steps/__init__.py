"""The steps of a recording: their windows and figures, and traces cut to some steps."""
