"""Central differential privacy: noise that devices share, and the accounting of releases.

    noise.py             integer noise in shares: exact Poisson and Skellam draws
    release.py           counts of a round: sampled by coins, with noise, or both
    loss.py              privacy loss distributions: made, composed, converted to epsilon or delta
    sample_threshold.py  the exact loss of sampling devices and suppressing small counts
    closed_forms.py      bounds on the same loss that an auditor checks by hand
    skellam.py           the exact loss of Skellam noise, with and without secret sampling
    events.py            what was released, and what each party saw of it
    ledger.py            entries, composed, and their budget
    suggestions.py       releases that would keep a budget that was exceeded
    planning.py          the best parameters for a budget

Devices draw noise and account for nothing: `noise` imports neither SciPy nor dp-accounting.
"""
