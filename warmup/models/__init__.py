"""The user's model: loaded, given inputs, compared with eager, shortened, its weights padded.

Imports `table` and `inductor` and all below them. `tuning`, `serving` and `bench` load models here.
"""
