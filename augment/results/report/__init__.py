"""``augment report``: one self-contained page from sidecars, for a trace, a job, a comparison or many runs.

``page`` reads what it is about and writes it; ``of_trace``, ``of_job``, ``of_diff`` and ``trend`` choose sections and
charts from its rows. Charts are Vega-Lite specifications:
``vega.js`` beside this file, which the build makes, draws them in the browser.
"""
