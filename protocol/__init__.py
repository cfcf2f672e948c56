"""What the programs mean by the vectors they sum: plans, sketches, messages, phases. No I/O.

Read `simulation.py` first: a whole study in memory, on one page. Then

    mechanism.py    what a round asks, and the three functions that answer it
    mechanisms/     one file each: a plan, `encode`, `decode`, `next_plan`
    sketches/       what they put into vectors: tables that add
    sampling.py     what a device leaves out
    domain.py       items as integers, and back;  hashing.py  where they go
    round.py        the phases of a secure sum, and when each is over
    messages.py     everything the programs say to one another

One word, one thing:

    study        a question and the rounds that answer it
    question     what an analyst asks: which items, how heavy, at what cost
    plan         what one round asks of each device
    cohort       the devices of one secure sum; a round has one or more
    phase        one stage of a cohort's sum
    participant  one device in one cohort
    vector       what a device adds; *sum*: of a cohort or a round; *answer*: what a sum says
    roster       who takes part, with keys; *survivors*: those whose vectors are in the sum
"""
