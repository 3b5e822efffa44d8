"""``augment report``: one self-contained page from sidecars, for a trace, a job, a comparison or many runs.

``subject`` reads what the page is about; ``of_trace``, ``of_job``, ``of_diff``, ``of_runs`` and ``of_history`` choose
sections and charts from its rows; ``html`` and ``markdown`` write them. Charts are Vega-Lite specifications:
``vega.js`` beside this file, which the build makes, draws them in the browser.
"""
