"""Charts as PNG and SVG: `chart` says what is shown, `draw` writes the files with matplotlib.

Imports `core`, and matplotlib when a chart is drawn. The benches and `explain --svg` call `draw`.
"""
