"""A small Kubernetes API over HTTP for tests: it keeps ResourceQuotas as the real one does, and fails on demand.

It knows namespaces, resourceVersion (a stale one is a 409), a bearer token (401), rights (403), quantities
(422), and can answer any status, answer late, or drop the connection.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = re.compile(r"/api/v1/namespaces/([^/]+)/resourcequotas(?:/([^/?]+))?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([eE][0-9]+|[numkMGTPE]|[KMGTPE]i)?")


class K8sApi:
    """`with K8sApi() as api:` and the client goes to `api.url`."""

    def __init__(self, *, namespaces: tuple[str, ...] = ("jobs",), token: str = "a-token") -> None:
        self.namespaces, self.token = set(namespaces), token
        self.quotas: dict[tuple[str, str], dict[str, Any]] = {}
        self.forbidden = False
        #: Answers to give instead of the real one: (status, message, headers), one a request.
        self.answers: list[tuple[int, str, dict[str, str]]] = []
        self.seconds = 0.0
        self.drops = 0
        self.drops_after_acting = 0
        #: Called before a write is looked at, as somebody who is faster.
        self.before_write: Callable[[], None] | None = None
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        self._version = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> K8sApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ------------------------------------------------------------ what people do behind our back

    def hard(self, name: str, namespace: str = "jobs") -> dict[str, str] | None:
        quota = self.quotas.get((namespace, name))
        return None if quota is None else dict(quota["spec"]["hard"])

    def edit(self, name: str, hard: dict[str, str | None], namespace: str = "jobs") -> None:
        """kubectl edit: None removes."""
        with self.lock:
            quota = self.quotas[namespace, name]
            for key, value in hard.items():
                if value is None:
                    quota["spec"]["hard"].pop(key, None)
                else:
                    quota["spec"]["hard"][key] = value
            self._stamp(quota)

    def use(self, name: str, used: dict[str, str], namespace: str = "jobs") -> None:
        self.quotas[namespace, name]["status"]["used"] = used

    # ------------------------------------------------------------ the server

    def _stamp(self, quota: dict[str, Any]) -> None:
        self._version += 1
        quota["metadata"]["resourceVersion"] = str(self._version)
        quota["status"]["hard"] = dict(quota["spec"]["hard"])

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        if self.answers:
            status, message, headers = self.answers.pop(0)
            return status, _status(status, message), headers
        if token != f"Bearer {self.token}":
            return 401, _status(401, "Unauthorized"), {}
        match = PATH.fullmatch(path)
        if match is None:
            return 404, _status(404, "the server could not find the requested resource"), {}
        namespace, name = match.groups()
        if self.forbidden:
            return 403, _status(403, f'resourcequotas is forbidden in the namespace "{namespace}"'), {}
        if method != "GET" and self.before_write is not None:
            self.before_write()
        with self.lock:
            return (*self._act(method, namespace, name, body), {})

    def _act(self, method: str, namespace: str, name: str | None, body: Any) -> tuple[int, Any]:
        if method == "GET":
            quota = self.quotas.get((namespace, name or ""))
            if quota is None:
                return 404, _status(404, f'resourcequotas "{name}" not found')
            return 200, copy.deepcopy(quota)
        bad = [text for text in body["spec"].get("hard", {}).values() if not QUANTITY.fullmatch(text)]
        if bad:
            return 422, _status(422, f"ResourceQuota is invalid: quantities {bad} must match the pattern")
        if method == "POST":
            name = body["metadata"]["name"]
            if namespace not in self.namespaces:
                return 404, _status(404, f'namespaces "{namespace}" not found')
            if (namespace, name) in self.quotas:
                return 409, _status(409, f'resourcequotas "{name}" already exists')
            quota = copy.deepcopy(body)
            quota["metadata"] |= {"namespace": namespace, "uid": f"uid-{self._version}"}
            quota["spec"].setdefault("hard", {})
            quota["status"] = {"hard": {}, "used": {}}
        else:
            old = self.quotas.get((namespace, name or ""))
            if old is None:
                return 404, _status(404, f'resourcequotas "{name}" not found')
            version = body["metadata"].get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                return 409, _status(
                    409, "the object has been modified; apply your changes to the latest version"
                )
            quota = copy.deepcopy(body) | {"status": old["status"]}
            quota["spec"].setdefault("hard", {})
        self._stamp(quota)
        self.quotas[namespace, str(name)] = quota
        return (201 if method == "POST" else 200), copy.deepcopy(quota)

    def _handler(api) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api.requests.append((self.command, self.path))
                if api.drops > 0:
                    api.drops -= 1
                    self.close_connection = True
                    return
                if api.seconds:
                    time.sleep(api.seconds)
                status, content, headers = api.answer(
                    self.command, self.path.split("?")[0], self.headers.get("Authorization", ""), body
                )
                if api.drops_after_acting > 0 and self.command != "GET":
                    api.drops_after_acting -= 1
                    self.close_connection = True
                    return
                raw = json.dumps(content).encode()
                try:
                    self.send_response(status)
                    for name, value in {"Content-Type": "application/json", **headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except OSError:  # the client has given up
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

            def log_message(self, *_: object) -> None: ...

        return Handler


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
