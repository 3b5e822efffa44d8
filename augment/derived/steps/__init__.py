"""The steps of a recording: their windows, their figures, and a part of a trace as a trace."""
