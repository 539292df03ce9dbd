"""Row kinds of selections for which inductor lists its choices by itself, without ``V.choices``.

`hooks` answers a selection from rows, and `calls` makes its choices callable to be timed. What each
kind adds, its key and its templates, stands in a module of its own: `convolution`, `grouped`.
"""
