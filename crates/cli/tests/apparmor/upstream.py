"""A registry with one image; or, as `upstream.py client`, who pulls that through the mirror and compares."""
import hashlib, http.server, io, json, os, sys, tarfile, urllib.request

REFERENCE = "/tmp/reference"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def client():
    want = json.load(open(REFERENCE))
    for path, sum in want.items():
        reply = urllib.request.urlopen("http://127.0.0.1:5050" + path, timeout=60).read()
        assert digest(reply) == sum, path


def serve():
    noise = os.urandom(2_000_000)
    open("/tmp/layer", "wb").write(noise)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        about = tarfile.TarInfo("layer")
        about.size = len(noise)
        tar.addfile(about, io.BytesIO(noise))
    layer = buffer.getvalue()
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {},
                         "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}}).encode()
    media = "application/vnd.oci.image."
    describe = lambda kind, data: {"mediaType": media + kind, "digest": digest(data), "size": len(data)}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
                           "config": describe("config.v1+json", config),
                           "layers": [describe("layer.v1.tar", layer)]}).encode()
    at = "/v2/library/app/"
    pages = {at + "manifests/1": manifest, at + "manifests/" + digest(manifest): manifest,
             at + "blobs/" + digest(config): config, at + "blobs/" + digest(layer): layer, "/v2/": b"{}"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            page = pages.get(self.path.split("?")[0])
            self.send_response(404 if page is None else 200)
            if page is not None and "manifests" in self.path:
                self.send_header("Content-Type", media + "manifest.v1+json")
                self.send_header("Docker-Content-Digest", digest(page))
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            return page or b""

        def do_GET(self):
            self.wfile.write(self.do_HEAD())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler)
    wanted = {path: digest(page) for path, page in pages.items() if path != "/v2/"}
    open(REFERENCE + ".part", "w").write(json.dumps(wanted))
    os.rename(REFERENCE + ".part", REFERENCE)
    server.serve_forever()


client() if sys.argv[1:] == ["client"] else serve()
