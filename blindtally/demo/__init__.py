"""The command `blindtally demo`: a whole study on one machine, over real HTTP.

    command.py    the options, and the order of events
    setup.py      the study: devices and their items, question, terms
    service.py    the server, in its own process
    play.py       creates the study, runs the fleet, verifies every sum
    results.py    the answer compared with the truth, and the costs
    screen.py     progress and tables
    picture.py    the results as a figure

The demo ends with an error if a sum differs in one bit from the sum of its survivors' vectors.
"""
