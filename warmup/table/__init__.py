"""The JSON file of a table: schema, reading without trust, writing, merging, and looking a row up.

Imports `core` and `keys`, and no torch. `tuning` writes tables, `serving` answers from them, and
the table commands read them on machines without torch.
"""

from warmup.table.schema import SCHEMA_VERSION, Policy, Provenance, Table

__all__ = ["SCHEMA_VERSION", "Policy", "Provenance", "Table"]
