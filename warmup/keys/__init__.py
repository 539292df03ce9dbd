"""What a row is about: the kinds of rows, and the keys that name their problems.

Imports `core`. Tables look rows up by key, inductor's hooks make keys, commands print them.
"""
