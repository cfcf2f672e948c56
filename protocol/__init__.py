"""The meaning of the summed vectors: plans, sketches, mechanisms, messages and phases. No I/O.

Read `simulation/study.py` first: a whole study in memory, on one page. Then

    question_and_plan.py    the public documents of a study: terms, question, plan
    study_state.py          the counts that finished rounds leave for the next one
    mechanism.py            the functions of a round: first plan, encode, decode, next plan
    mechanisms/             the registry, and one folder for each family of mechanisms
    sketches/               linear tables, which mechanisms encode items into
    histograms.py           what devices hold, as arrays
    domains/                items as integers and back; `hashing.py` maps these to cells
    api/phases.py           the phases of a secure sum, and their ends
    api/messages.py         the documents between server, devices and analysts

The terms are in docs/glossary.md.
"""
