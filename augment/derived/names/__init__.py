"""What names tell: the type of a kernel, the kind of a collective. Tables of patterns."""
