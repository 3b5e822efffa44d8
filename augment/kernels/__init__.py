"""The kernels: the loops that are compiled to machine code, and what Python needs to call them.

This package imports only numpy and its own modules. ``catalogue.py`` lists the functions that Python calls.
"""
