# Runs in a sandbox, and calls a handler for whoever asks on standard input, which is a socket:
# docs/handler-protocol.md.
import json, os, socket, struct, sys, traceback

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


told()
sys.path.insert(0, "/code")
try:
    import handler
    handle = handler.handle
except BaseException:
    send({"error": traceback.format_exc()[-4000:]})
    sys.exit(1)
send({})
while True:
    event = told()["event"]
    try:
        answer = {"value": handle(event)}
        json.dumps(answer)
    except Exception:
        answer = {"error": traceback.format_exc()[-4000:]}
    sys.stdout.flush()
    send(answer)
