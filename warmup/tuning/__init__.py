"""The verb `build`: compiles a model's buckets, measures each question, writes winners to a table.

No folder may be named like the public function `warmup.build`: it would replace the function.
"""
