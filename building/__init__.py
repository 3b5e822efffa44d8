"""Builds the kernels of ``augment/kernels`` into a shared library for any of the supported platforms.

::

    python building [TARGET]     # by hand; without TARGET for this machine, beside the kernels

``hook.py`` does it whenever the package is built or installed. No compiler need be on the machine: numba makes the
intermediate code, LLVM in llvmlite the object, Zig from the package ``ziglang`` links it.
"""
