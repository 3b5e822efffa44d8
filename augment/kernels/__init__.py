"""The kernels: every loop that is compiled to machine code, and what Python needs to call them.

The room imports numpy and itself alone. ``catalogue.py`` lists the functions that Python calls.
"""
