"""Tables of name patterns: the type of a kernel, the kind of a collective."""
