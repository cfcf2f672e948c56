"""A transport that answers by a function, and sends its answers as a network would: as a stream."""

from collections.abc import Callable

import httpx


class MockTransport(httpx.MockTransport):
    """httpx.MockTransport, whose responses can be read as streams."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        def streamed(request: httpx.Request) -> httpx.Response:
            response = answer(request)
            stream = httpx.ByteStream(response.content)
            return httpx.Response(response.status_code, headers=response.headers, stream=stream)

        super().__init__(streamed)
