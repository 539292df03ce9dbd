"""The user's model: loading it, inputs of a bucket, outputs compared, equal layers, padded weights.

Imports `table` and `inductor` and all below them. `tuning`, `serving` and `bench` load models here.
"""
