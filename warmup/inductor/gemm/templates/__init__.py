"""Templates of warmup's own for GEMMs with few rows, which are as fast as the weights are read.

Each module has one template, the tiles that are worth trying, and what it computes. A template is
registered with inductor when its module is imported, and is offered by no list of inductor's: only
a search of warmup lists its candidates, and only a row serves them. Rows name the hash of its
source, so that a changed template makes its rows misses for that reason.
"""
