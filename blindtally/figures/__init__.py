"""`blindtally figures`: the figures of [Gascon23, section 7], and what they say of us.

    populations.py   who holds what: draws of counts by round, steady or drifting
    paper.py         the paper's tables, at the paper's price, and its sampled methods
    sketches.py      count-median and count-sketch at the paper's price
    ours.py          mechanisms of ours, as the service runs them
    curves.py        a curve: a method over a grid, several runs a point
    drawing.py       pictures
    command.py       the sub-commands

A figure needs thousands of rounds. So a round is its counts by item, which devices of one item
each make up; samples are binomial, and each distinct key is inserted once.
"""
