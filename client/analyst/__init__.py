"""The analyst's SDK: create a study, watch its rounds, read its answer.

`async_study` and `async_sender` are written by hand, for programs with an event loop. `study` and
`sender` are generated from them (`make generate`) for programs that wait in a thread.
"""
