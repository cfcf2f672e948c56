"""The analyst's SDK: create a study, watch its rounds, read its answer.

`async_analyst` and `async_sender` are written by hand, for programs with an event loop. `analyst`
and `sender` are generated from them (`make generate`) for programs that wait in a thread.
"""
