"""`blindtally demo`: the whole thing, once, on one machine, over real HTTP.

    command.py    the options, and the order of events
    setup.py      from options to a study: who holds what, what is asked, on which terms
    service.py    the server, as a process of its own
    play.py       creates the study, drives the fleet, checks every sum
    results.py    what was found beside the truth, and what it cost
    screen.py     progress and tables
    picture.py    the same as a figure

Its promise: a sum that is not that of its survivors' vectors, bit for bit, ends it.
"""
