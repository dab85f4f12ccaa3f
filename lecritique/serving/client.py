"""A small client of the value service, with the standard library alone."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from lecritique.core.errors import LecritiqueError
from lecritique.serving import wire
from lecritique.serving.wire import Form


class ValueServiceError(LecritiqueError):
    """The service refused; `status` is 503 when the same request may be made again later."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class ValueClient:
    """Asks a value service over one kept connection; not for several threads at once.

    Args:
        address: as the service prints it, such as http://127.0.0.1:8123.
        token: where the service needs one.
        form: json, or msgpack, which is smaller and needs the package.
        timeout_seconds: of each answer.
    """

    def __init__(
        self, address: str, *, token: str | None = None, form: Form = "json", timeout_seconds: float = 60.0
    ) -> None:
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
        self._form = form
        self._headers = {"Content-Type": wire.TYPES[form], "Accept": wire.TYPES[form]}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def values(self, sequences: Sequence[Sequence[int] | Mapping[str, Any]]) -> tuple[list[list[float]], int]:
        """Values of each sequence's wanted tokens, in order, and the one version that gave them all.

        Args:
            sequences: token ids, or {"token_ids", "mask" or "from", "context": {"position", "token_ids"}}.

        Raises:
            ValueServiceError: the service refused.
            OSError: it cannot be reached.
        """
        answer = self._ask("POST", "/v1/values", {"sequences": list(sequences)})
        return answer["values"], answer["version"]

    def version(self) -> dict[str, Any]:
        """Which weights serve, and what they take."""
        return self._ask("GET", "/version")

    def reload(self, path: str | None = None) -> int:
        """Have other weights served; their version."""
        return int(self._ask("POST", "/v1/reload", {"path": path})["version"])

    def close(self) -> None:
        """Close the connection; the next question opens it again."""
        self._connection.close()

    def _ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        body = None if content is None else wire.encode(content, self._form)
        try:
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            answer = wire.decode(response.read(), self._form)
        except BaseException:
            self._connection.close()  # half-read, it would answer the next question with this one's rest
            raise
        if response.status != 200:
            raise ValueServiceError(str(answer.get("error", answer)), response.status)
        return answer  # type: ignore[no-any-return]

    def __enter__(self) -> ValueClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
