"""`RowStore`: rows of many tables in one place, of which each table is a view.

A folder by default; any URL that fsspec opens with the extra `store`. Files are named by their
content and never changed, so that a writer that is killed leaves the store as it was.
"""

from warmup.table.row_store.row_store import RowStore

__all__ = ["RowStore"]
