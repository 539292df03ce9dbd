"""Live counters of the installed table, for the metrics of the server that it is installed in.

`warmup.metrics` is the door to them. Neither prometheus_client nor OpenTelemetry is imported before
a collector or a meter is asked for.
"""
