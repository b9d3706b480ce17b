"""A stand-in for the Hugging Face Hub that speaks what ``huggingface_hub`` asks of it: repositories, LFS, commits."""

import base64
import fnmatch
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

LARGE = (".safetensors", ".png")
"""Files that go through LFS."""


class Hub:
    """Repositories by name: private or not, and their commits, each a dictionary of files."""

    def __init__(self):
        self.repos, self.blobs, self.asked, self.lost = {}, {}, [], set()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def commits(self, name):
        return self.repos[name]["commits"]

    def files(self, name, revision="main"):
        """The commit and the files of a revision."""
        commits = self.commits(name)
        found = commits[-1:] if revision == "main" else [one for one in commits if one[0] == revision]
        return found[0] if found else None

    def commit(self, name, lines):
        files = dict(self.commits(name)[-1][1])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = hashlib.sha1(json.dumps([len(self.commits(name)), sorted(files)]).encode()).hexdigest()
        self.commits(name).append((sha, files))
        return sha


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, content=b"", status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        if status >= 400:
            headers["X-Error-Code"] = {404: "RepoNotFound"}.get(status, "Bad")
        for key, value in {"Content-Length": str(len(body)), "Content-Type": kind, **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        where = urlsplit(self.path)
        path, query = unquote(where.path), parse_qs(where.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.asked.append(f"{self.command} {path}")
        for (method, pattern), do in ROUTES.items():
            if method == self.command and (found := re.fullmatch(pattern, path)):
                groups = found.groups()
                if groups and method != "PUT" and groups[0] not in self.hub.repos:
                    return self.answer({"error": "Repository not found"}, 404)
                return do(self, body, query, *groups)
        return self.answer({"error": f"unknown {self.command} {path}"}, 501)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    # ---------------------------------------------------------------- what is asked

    def create(self, body, query):
        asked = json.loads(body)
        name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
        name = name if "/" in name else f"me/{name}"
        if name in self.hub.repos:
            return self.answer({"url": f"{self.hub.url}/{name}"}, 409)
        first = ("0" * 40, {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.hub.repos[name] = {"private": bool(asked.get("private")), "commits": [first]}
        return self.answer({"url": f"{self.hub.url}/{name}", "name": name})

    def validate(self, body, query):
        self.answer({"errors": [], "warnings": []})

    def preupload(self, body, query, name, revision):
        files = [
            {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
             "shouldIgnore": False, "oid": None}
            for one in json.loads(body)["files"]
        ]  # fmt: skip
        self.answer({"files": files})

    def batch(self, body, query, name):
        asked = json.loads(body)["objects"]
        up = [{**x, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{x['oid']}", "header": {}}}} for x in asked]
        self.answer({"transfer": "basic", "objects": up})

    def store(self, body, query, oid):
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.blobs[oid] = body
        self.answer({})

    def commit(self, body, query, name, revision):
        sha = self.hub.commit(name, [json.loads(line) for line in body.splitlines() if line])
        url = f"{self.hub.url}/{name}/commit/{sha}"
        self.answer({"commitUrl": url, "commitOid": sha, "success": True})

    def info(self, body, query, name, revision="main"):
        found = self.hub.files(name, revision)
        if found is None:
            return self.answer({"error": "Revision not found"}, 404)
        return self.answer(self.described(name, found))

    def described(self, name, found):
        tags = re.findall(r"^- (\S+)$", found[1].get("README.md", b"").decode().split("\n---")[0], re.MULTILINE)
        names = [{"rfilename": one} for one in found[1]]
        return {"_id": name, "id": name, "modelId": name, "sha": found[0], "private": False, "tags": tags,
                "siblings": names, "downloads": 0, "likes": 0}  # fmt: skip

    def tree(self, body, query, name, revision):
        _, files = self.hub.files(name, revision)
        self.answer([
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in files.items()
        ])  # fmt: skip

    def resolve(self, body, query, name, revision, path):
        found = self.hub.files(name, revision)
        if found is None or path not in found[1] or path in self.hub.lost:
            return self.answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=found[0] if found else "")
        data = found[1][path]
        return self.answer(data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=found[0])

    def models(self, body, query):
        author, tags = query.get("author", [""])[0], query.get("filter", [])
        known = [self.described(name, self.hub.files(name)) for name in self.hub.repos]
        mine = [x for x in known if fnmatch.fnmatch(x["id"], f"{author or '*'}/*") and set(tags) <= set(x["tags"])]
        self.answer(mine)


NAME = r"([\w.-]+/[\w.-]+)"
ROUTES = {
    ("POST", "/api/repos/create"): _Handler.create,
    ("POST", "/api/validate-yaml"): _Handler.validate,
    ("POST", f"/api/models/{NAME}/preupload/(.+)"): _Handler.preupload,
    ("POST", f"/{NAME}.git/info/lfs/objects/batch"): _Handler.batch,
    ("PUT", "/lfs/(.+)"): _Handler.store,
    ("POST", f"/api/models/{NAME}/commit/(.+)"): _Handler.commit,
    ("GET", f"/api/models/{NAME}"): _Handler.info,
    ("GET", f"/api/models/{NAME}/revision/(.+)"): _Handler.info,
    ("GET", f"/api/models/{NAME}/tree/([^/]+)"): _Handler.tree,
    ("GET", "/api/models"): _Handler.models,
    ("GET", f"/api/datasets/{NAME}/revision/(.+)"): _Handler.info,
    ("GET", f"/api/datasets/{NAME}/tree/([^/]+)"): _Handler.tree,
    ("GET", f"/datasets/{NAME}/resolve/([^/]+)/(.+)"): _Handler.resolve,
    ("HEAD", f"/datasets/{NAME}/resolve/([^/]+)/(.+)"): _Handler.resolve,
    ("GET", f"/{NAME}/resolve/([^/]+)/(.+)"): _Handler.resolve,
    ("HEAD", f"/{NAME}/resolve/([^/]+)/(.+)"): _Handler.resolve,
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in that ``huggingface_hub`` takes for the Hub; the working folder is empty."""
    pytest.importorskip("huggingface_hub")
    served = Hub()
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)  # it reads its environment when it is imported
    for key, value in {"HF_ENDPOINT": served.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf"),
                       "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    yield served
    served.server.shutdown()
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
