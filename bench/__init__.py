"""Benchmarks: each module is run by `make bench NAME=…`, prints a table and, as its last line, one JSON object."""
