"""The user's model: loaded, given inputs, run in higher precision, shortened, its weights padded.

Imports `table` and `inductor` and all below them. `tuning`, `serving` and `bench` load models here.
"""
