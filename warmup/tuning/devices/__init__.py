"""Builds on several devices of one host: a queue of problems, and a worker process on each device.

`build_on_devices` is the verb. A `Runner` is the seam to a worker, `LocalRunner` the one that
starts a process here.
"""
