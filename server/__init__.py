"""The service: HTTP and pages in front, a database behind, an orchestrator that closes phases.

Reading order:

    db/schema.py          the tables
    db/database.py        engines and transactions, for SQLite or PostgreSQL
    db/repositories/      one method for each query, one transaction for each method
    db/migrations/        brings a database to this program's schema at every start
    rounds/decoding.py    the sum of a cohort, and the answer of a round
    rounds/orchestrator.py  checks every running cohort, and closes the phases that are due
    rounds/jobs.py        sums and decoding, in one process at a time
    rounds/cohort_cache.py  facts of closed phases, read once
    notify/               long polls, event streams and notifications between processes
    http/                 authentication, limits, problem details, the log line of each request
    telemetry/            logs, metrics and traces
    api/                  the routes under /v1; pages/: the dashboard
    service.py            the parts of a running process
    app.py                the application; settings.py has its settings

The server is the honest but curious adversary of the secure sum: its data must only allow
the addition. The only secrets in the database are digests of credentials. The secrets that it
recovers to remove masks exist inside one function call, and reach no row, log or error.
"""
