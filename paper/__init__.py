"""Figures of the papers, drawn from data: `python -m paper --help` lists them.

    gascon23.py             the tables of [Gascon23], at the paper's price, and its sampled methods
    frequency_sketches.py   count-median and count-sketch at the paper's price
    method_comparison.py    F1 of `tracked` compared with the paper's adaptive tables
    curves.py, growth.py, words.py, threshold_rules.py, cdf.py   what each figure measures
    oracle_experiments.py   the experiments of [Pan24] with locally private oracles
    drawing.py, output.py   pictures by matplotlib, and the rows that they show as CSV
    commands.py             the commands

A figure needs thousands of rounds. A round is therefore its counts by item, as if each unit of a
count were a device of its own; samples are binomial, and each distinct key is inserted once.
"""
