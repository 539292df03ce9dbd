"""Weights padded ahead of time: which Linears can be, from which rows of a table, and doing it."""
