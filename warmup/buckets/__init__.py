"""The sizes that are tuned and served: buckets, dynamic dims, histograms, and `suggest`.

Imports `core`. `models` makes the inputs for a bucket; `tuning` and `serving` go bucket by bucket.
"""
