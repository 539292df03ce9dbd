"""Builds on several devices of one host: a queue of problems, and worker processes on each device.

`build_on_devices` is the verb, and `build_model_on_devices` that for a model.
"""
