# Runs in a sandbox, and calls a handler for whoever asks on standard input, which is a socket:
# docs/handler-protocol.md.
import builtins, json, os, socket, struct, sys, traceback

channel = socket.socket(fileno=os.dup(0))
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 0)
os.close(null)


def receive(count):
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            os._exit(0)
        parts += part
    return bytes(parts)


def send(message):
    text = json.dumps(message).encode()
    channel.sendall(struct.pack("<I", len(text)) + text)


def told():
    return json.loads(receive(struct.unpack("<I", receive(4))[0]))


imported = set()
import_module = builtins.__import__


def note_import(name, globals=None, locals=None, fromlist=(), level=0):
    """Imports, and notes which modules of others the handler's own code asks for."""
    module = import_module(name, globals, locals, fromlist, level)
    if level == 0 and str((globals or {}).get("__file__", "")).startswith("/code/"):
        imported.update([name], (f"{name}.{part}" for part in fromlist or ()))
    return module


def is_of_others(name):
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return origin is not None and not origin.startswith("/code/")


told()
sys.path.insert(0, "/code")
builtins.__import__ = note_import
try:
    import handler
    handle = handler.handle
except BaseException:
    send({"error": traceback.format_exc()[-4000:]})
    sys.exit(1)
finally:
    builtins.__import__ = import_module
send({"modules": sorted(filter(is_of_others, imported))[:1024]})
while True:
    event = told()["event"]
    try:
        answer = {"value": handle(event)}
        json.dumps(answer)
    except Exception:
        answer = {"error": traceback.format_exc()[-4000:]}
    sys.stdout.flush()
    send(answer)
