"""The service: HTTP in front, a database behind, and a ticker that closes what is due.

Reading order:

    schema.py         the tables: what was said, by whom, and how far each cohort is
    database.py       engines and transactions, SQLite or PostgreSQL
    migrations/       brings a database to this program's schema, at every start
    store/            one method per question, one transaction per method
    decoding.py       a frozen cohort's sum, a finished round's answer
    orchestrator.py   looks at every waiting cohort, and moves those that are due
    frozen.py         what closed phases froze, read once and kept
    watch.py          long polls: wakes whoever waits for a cohort or a study
    pacing.py         when those who were sent away are to come back
    problems.py       every refusal as problem+json
    limits.py         what is refused before it is read: bodies too large, or too slow
    connection.py     the same of heads, and of what is no HTTP
    observing.py      what is kept of a request; metrics.py, logs.py, traces.py: where it goes
    streams.py        who follows a study's events, and what wakes them
    api/              the paths under /v1, thin: read, ask the store, answer
    app.py            joins the parts; settings.py what an operator may choose

The server is the adversary of the secure sum, an honest but curious one: it must be able to
do nothing with what it holds but add. Of secrets it keeps the hashes of tickets alone; what
it recovers to take masks off lives in one function call and reaches no row, log or error.
"""
