"""The meaning of the summed vectors: plans, sketches, mechanisms, messages and phases. No I/O.

Read `simulation/study.py` first: a whole study in memory, on one page. Then

    study.py        the public documents of a study (terms, question, plan), and its state
    mechanism.py    the functions of a round: first plan, encode, decode, next plan
    mechanisms/     the registry, and one folder for each family of mechanisms
    sketches/       linear tables, which mechanisms encode items into
    histograms.py   what devices hold, as arrays
    domains/        items as integers and back; `hashing.py` maps these to cells
    phases.py       the phases of a secure sum, and their ends
    messages.py     all messages between server and devices

The terms are in docs/glossary.md.
"""
