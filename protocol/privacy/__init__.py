"""Central differential privacy: noise that devices share, and the accounting of what is said.

    noise.py             integer noise in shares: exact Poisson and Skellam draws
    loss.py              privacy loss distributions of one interval: made, composed, asked
    sample_threshold.py  the exact loss of sampling devices and suppressing small counts
    closed_forms.py      bounds on the same loss that an auditor checks by hand
    skellam.py           the exact loss of Skellam noise, with and without secret sampling
    entries.py           what was released, and what each party saw of it
    ledger.py            entries, composed, and their budget
    remedies.py          what would meet a budget that was refused
    planning.py          the best parameters for a budget

Devices draw noise and account for nothing: `noise` imports neither SciPy nor dp-accounting.
"""
