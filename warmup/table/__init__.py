"""`Table` and its JSON file: the schema, safe reading, atomic writing, merging, and lookups.

Imports `core` and `keys`, and no torch. `tuning` writes tables, `serving` answers from them, and
the table commands read them on machines without torch.
"""
