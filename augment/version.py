"""The version, in a module without imports, so that every module can use it."""

__version__ = "0.25.5"
