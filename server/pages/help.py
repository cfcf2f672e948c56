"""Page that explains the terms of the other pages, which link to them."""

from fastapi import Request, Response

from server.pages.forms.fields import QUESTION_FORMS
from server.pages.page_requests import page_router
from server.pages.rendering import render

router = page_router()


@router.get("/help")
async def show(request: Request) -> Response:
    """Show the terms, and the kinds of question."""
    return render(request, "help.html", questions=tuple(QUESTION_FORMS.values()))
