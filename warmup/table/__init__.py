"""Table files: schema, codec, store, merge. Floor 1; imports no torch."""

from warmup.table.schema import SCHEMA_VERSION, Policy, Provenance, Table

__all__ = ["SCHEMA_VERSION", "Policy", "Provenance", "Table"]
