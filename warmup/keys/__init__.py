"""Row kinds and keys: how the text form of a problem is made, checked and parsed.

Imports `core`. Inductor's hooks make keys, tables look rows up by key, commands print them.
"""
