// Runs in a sandbox, and calls a handler for whoever asks on standard input, which is a socket:
// docs/handler-protocol.md.
const net = require("net");
const channel = new net.Socket({ fd: 0, readable: true, writable: true });

let received = Buffer.alloc(0);
let handle = null;
let turn = Promise.resolve();

function send(message) {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(text.length);
  channel.write(Buffer.concat([head, text]));
}

async function take(message) {
  try {
    if (handle === null) {
      handle = require("/code/handler.js").handle;
      if (typeof handle !== "function") throw new Error("handler.js exports no function handle");
      send({});
    } else {
      const value = await handle(message.event);
      send({ value: value === undefined ? null : value });
    }
  } catch (error) {
    send({ error: String((error && error.stack) || error).slice(-4000) });
  }
}

channel.on("data", (piece) => {
  received = Buffer.concat([received, piece]);
  while (received.length >= 4 && received.length >= 4 + received.readUInt32LE()) {
    const length = received.readUInt32LE();
    const message = JSON.parse(received.subarray(4, 4 + length));
    received = received.subarray(4 + length);
    turn = turn.then(() => take(message));
  }
});
channel.on("end", () => process.exit(0));
