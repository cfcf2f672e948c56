"""The dashboard: pages that the service serves of itself, for people.

    view.py       templates: a whole page, or its live part alone for htmx
    guarding.py   routes of pages: errors are pages, forms come from our own pages only
    login.py      an API key becomes a cookie, and is forgotten
    studies.py    the list, one study, its downloads, start and stop
    creating.py   a form that becomes a study
    rounds.py     one round, for the operator
    operations.py processes, leases, keys, the audit trail, ledgers
    answers.py    heavy hitters as rows; charts.py what is drawn; history.py what they were before
    kinds.py      the fields of the form; words.py numbers, times and sizes as people read them
    promise.py    what the server could see of a study, in words
    assets.py     what never changes while a process lives: scripts, styles

Data comes from the store and from what the API makes of it, in this process; nothing here asks
over HTTP. Pages are complete without scripts. With them, one event stream of a study says *that*
something happened, and htmx fetches the page's live part anew: so there is one way to show a fact.
"""
