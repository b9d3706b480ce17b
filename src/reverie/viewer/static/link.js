// The websocket: one request after the other, each with an answer. See server.py for the form of an answer.

export function connect() {
  const url = new URL("ws", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = "";
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  return socket;
}

export function unpack(data) {
  const length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  let from = 4 + length;
  head.pictures = head.pictures.map(([row, side, size]) => {
    const blob = new Blob([data.slice(from, from + size)], { type: "image/png" });
    from += size;
    return { row, side, blob };
  });
  return head;
}

export class Link {
  constructor(lost) {
    this.waiting = new Map();
    this.number = 0;
    this.socket = connect();
    this.opened = new Promise((done) => this.socket.addEventListener("open", done, { once: true }));
    this.socket.addEventListener("message", (event) => this.#received(event.data));
    this.socket.addEventListener("close", (event) => {
      for (const [, failed] of this.waiting.values()) failed(new Error("The connection is closed."));
      lost(event.reason);
    });
  }

  async ask(what, given = {}) {
    await this.opened;
    if (this.socket.readyState > WebSocket.OPEN) return new Promise(() => {}); // the page has said so
    const id = ++this.number;
    const answer = new Promise((done, failed) => this.waiting.set(id, [done, failed]));
    this.socket.send(JSON.stringify({ id, do: what, ...given }));
    return answer;
  }

  #received(data) {
    const head = unpack(data);
    const [done, failed] = this.waiting.get(head.id) ?? [() => {}, () => {}];
    this.waiting.delete(head.id);
    if (head.error) failed(Object.assign(new Error(head.error), { kind: head.kind }));
    else done(head);
  }
}
