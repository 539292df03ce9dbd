"""The sizes that are tuned and served: buckets, dynamic dims, histograms, and the verb `suggest`.

Imports `core`. Models make inputs of a bucket; `tuning` and `serving` go bucket by bucket.
"""
