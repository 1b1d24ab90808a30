"""An object store as a local server, and fsspec's access to it: whole objects are put, got, listed and deleted.

    objects://127.0.0.1:PORT/bucket/run

There are no folders, nothing can be moved or appended to, and an object shows when all of its bytes have come.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem


class Handler(BaseHTTPRequestHandler):
    """Answers for the objects of its server."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        if len(content) == length:  # else its sender is gone
            self.objects[self.path] = content
            self.answer(200)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?list")
        if query or self.path.endswith("?list"):
            sizes = {name: len(content) for name, content in list(self.objects.items()) if name.startswith(path)}
            self.answer(200, json.dumps(sizes).encode())
        elif path in self.objects:
            self.answer(200, self.objects[path])
        else:
            self.answer(404)

    def do_DELETE(self) -> None:
        self.answer(404 if self.objects.pop(self.path, None) is None else 200)

    def answer(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def object_store() -> Iterator[str]:
    """A server for as long as the block runs; yields the URL of a bucket."""
    handler = type("Handler", (Handler,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"objects://127.0.0.1:{server.server_port}/bucket"
        finally:
            server.shutdown()


class Objects(AbstractFileSystem):
    """fsspec's access to such a server."""

    protocol = "objects"
    cachable = False

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"http://{self._strip_protocol(path)}", content, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError:
            raise FileNotFoundError(path) from None

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        host = path.partition("/")[0]
        sizes = {f"{host}{name}": size for name, size in json.loads(self._ask("GET", f"{path}?list")).items()}
        if path in sizes:
            entries = [{"name": path, "size": sizes[path], "type": "file"}]
        else:
            below = {name: name[len(path) + 1 :].split("/") for name in sizes if name.startswith(f"{path}/")}
            entries = [{"name": n, "size": sizes[n], "type": "file"} for n, words in below.items() if len(words) == 1]
            folders = {f"{path}/{words[0]}" for words in below.values() if len(words) > 1}
            entries += [{"name": name, "size": 0, "type": "directory"} for name in folders]
        if not entries:
            raise FileNotFoundError(path)
        return entries if detail else [entry["name"] for entry in entries]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._ask("PUT", path, bytes(value))

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self._ask("PUT", rpath, Path(lpath).read_bytes())

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._ask("GET", path)[start:end]

    def rm_file(self, path: str) -> None:
        self._ask("DELETE", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        raise NotImplementedError


fsspec.register_implementation("objects", Objects, clobber=True)
