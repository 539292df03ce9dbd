"""The user's model: loaded, given inputs, run in higher precision, its weights padded.

Imports `table` and `inductor` and all below them. `tuning`, `serving` and `bench` load models here.
"""
