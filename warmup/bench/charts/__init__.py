"""Charts as PNG and SVG: `chart` is what a chart shows, `draw` writes the files.

`drawing` paints with matplotlib in the style of charts.mplstyle, `labels` places the values, and
`units` chooses the unit. Imports `core`, and matplotlib when a chart is drawn.
"""
