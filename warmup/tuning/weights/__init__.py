"""Whether padding a model's unaligned weights pays: measured for each group, written as rows.

Imports what `tuning` imports. A build calls `measure.measure_weights`
between its runs with unpadded and with padded weights.
"""
