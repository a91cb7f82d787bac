"""The few questions that localcluster itself asks the API server, with the standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from localcluster.errors import LocalClusterError


class Api:
    """JSON over HTTPS to one API server, as one user."""

    def __init__(self, host: str, port: int, authority: str, token: str) -> None:
        self._host, self._port, self._token = host, port, token
        self._context = ssl.create_default_context(cadata=authority)

    def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json", timeout: float = 10.0
    ) -> tuple[int, bytes]:
        """Status and body of one request. Raises OSError (or ssl.SSLError) when there is no answer."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=timeout)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The parsed object, or None when there is none."""
        status, text = self.request("GET", path)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise LocalClusterError(f"GET {path}: {status} {text.decode(errors='replace')[:300]}")
        return json.loads(text)

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self.request("GET", "/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False
