"""The dashboard: the service's own pages, for people.

    view           templates: a whole page, or only its live part for htmx
    page_routes    routes of pages: errors are pages, and forms come from our own pages only
    login          exchanges an API key for a cookie, and deletes the cookie
    studies        the list of studies, one study, its downloads, start and stop
    rounds         one round, for the operator
    operations     processes, leases, keys, the audit trail, ledgers
    forms/         the form that creates a study
    answers        heavy hitters and quantiles of a study
    charts         charts and sparklines
    history        estimates after each earlier round
    formatting     numbers, times and sizes as text
    privacy_summary  what the server could and could not see of a study
    assets         scripts and styles, which do not change while a process runs

Pages call the repositories and the functions of the API in this process, without HTTP. They are
complete without scripts. With scripts, the event stream of a study notifies a page *that*
something changed, and htmx fetches the page's live part again, so one template shows each fact.
"""
