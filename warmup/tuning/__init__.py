"""The verb `build`: compiles a model's buckets, measures each question, writes winners to a table.

Imports `serving` and all below it. The folder has no name of a verb, since a folder named like the
public function `warmup.build` would replace the function.
"""
