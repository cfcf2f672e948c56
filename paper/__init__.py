"""Figures of the papers, drawn from data: `python -m paper --help` lists them.

    gascon23.py                     the tables of [Gascon23], at its price, and its sampled methods
    frequency_sketches.py           count-median and count-sketch at the paper's price
    adaptive_iblt.py                the mechanism adaptive-iblt on counts, and its rules for t
    f1_curves.py, cost_growth.py    F1 of methods, and growth of costs with rounds
    f1_and_words.py, cdf.py         words for an F1, and distributions
    oracle_experiments.py           the experiments of [Pan24] with locally private oracles
    drawing.py                      pictures by matplotlib
    options.py                      options of the commands, and the files that they read and write
    commands.py                     the commands

A figure needs thousands of rounds. A round is therefore its counts by item, as if each unit of a
count were a separate device; samples are binomial, and each distinct key is inserted once.
"""
