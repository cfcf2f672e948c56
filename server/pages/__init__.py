"""The dashboard: the service's own pages, for people.

Pages call the repositories and the functions of the API in this process, without HTTP. They are
complete without scripts. With scripts, the event stream of a study notifies a page *that*
something changed, and htmx fetches the page's live part again, so one template shows each fact.
"""
