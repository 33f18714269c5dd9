"""Requests without a pause, from several threads, that count what was refused."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

import requests

JSON = dict[str, Any]


@dataclass
class Load:
    """While the context is open: each thread creates a background response, polls it, and runs a
    foreground one. Each request has a connection of its own and is sent once."""

    base_url: str
    key: str
    verify: str | bool = True
    """As of `requests`: the certificate to accept."""
    threads: int = 3
    answered: int = 0
    refused: list[str] = field(default_factory=list)
    """Each request that was not answered with 200: method, path, and what came instead."""
    open_ids: list[str] = field(default_factory=list)
    """The background responses that were created."""

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._running = [
            threading.Thread(target=self._run, daemon=True) for _ in range(self.threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._running:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._running:
            thread.join(60)

    def wait_for_answers(self, count: int, within: float = 60) -> None:
        """Waits until so many more requests were answered."""
        wanted, end = self.answered + count, time.monotonic() + within
        while self.answered < wanted:
            assert time.monotonic() < end, f"{self.answered} of {wanted}: {self.refused[:5]}"
            time.sleep(0.05)

    def call(self, method: str, path: str, body: JSON | None = None) -> JSON | None:
        """The body of the answer; None if the request was refused."""
        try:
            answer = requests.request(
                method,
                f"{self.base_url}{path}",
                json=body,
                headers={"Authorization": f"Bearer {self.key}", "Connection": "close"},
                timeout=60,
                verify=self.verify,
            )
        except requests.RequestException as error:
            self._refuse(f"{method} {path}: {error!r}")
            return None
        if answer.status_code != 200:
            self._refuse(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
            return None
        with self._lock:
            self.answered += 1
        found: JSON = answer.json()
        return found

    def _refuse(self, what: str) -> None:
        with self._lock:
            self.refused.append(what)

    def _run(self) -> None:
        while not self._ended.is_set():
            created = self.call(
                "POST", "/responses", {"model": "demo", "input": "load", "background": True}
            )
            if created is not None:
                with self._lock:
                    self.open_ids.append(created["id"])
                self.call("GET", f"/responses/{created['id']}")
            self.call("POST", "/responses", {"model": "demo", "input": "load"})
