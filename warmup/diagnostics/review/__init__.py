"""Review: whether the numbers of a table, a comparison or a benchmark can be true.

`measurement` says what is reviewed, `rules` what is doubted and why; `table_rows` and `documents`
read measurements from tables and from JSON of `compare` and `bench`.
"""
