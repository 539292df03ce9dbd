"""The row kind ``convolution``: the library's kernel, or a Triton template with its tile.

`choices` says which of inductor's choices a row means, `calls` makes them callable to be timed, and
`hooks` answers inductor.
"""
