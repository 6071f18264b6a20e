"""Reruns the figures that pages quote, and writes the tables that quote them: `make claims`.

`benchmarks/claims.toml` has every claim with its commands, its bound and its last figures. `model.py` reads and writes
that file, `ratios.py` computes ratios and their intervals, `load.py` measures what other processes used, `running.py`
runs commands, `judging.py` compares, `texts.py` words figures, and `pages.py` writes them into the pages.
"""
