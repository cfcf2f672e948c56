"""The service: HTTP and pages in front, a database behind, an orchestrator that closes phases.

`docs/architecture.md` has the map. The server is the honest but curious adversary of the secure
sum: its data must only allow the addition. The only secrets in the database are digests of
credentials. The secrets that it recovers to remove masks exist inside one function call, and reach
no row, log or error.
"""
