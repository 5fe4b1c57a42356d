// The ways to the server: streams of JSON, a value a line, and the language server of this page.

/** What a connection that breaks is told as. */
const gone = () => {
  throw new Error("The demo has ended; start `caesura demo` again.");
};

/** The values of a stream as they come. `signal` ends it, and with it the work behind it. */
export async function* stream(path, body, signal) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify(body ?? null), signal }).catch(gone);
  if (!response.ok) throw new Error((await response.text()).trim());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(gone);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

/** A client of the language server. What is sent while a message is under way goes together with the next one, so
 * that all arrive in order. */
export class LanguageServer {
  #waiting = new Map();
  #queue = [];
  #sending = false;
  #session;
  #id = 0;

  /** Connect, and hear until the server ends; the others may be called meanwhile. */
  async run(hear) {
    for await (const message of stream("/sessions")) {
      if (message.type === "failed") throw new Error(message.message);
      if (message.session) {
        this.#session = message.session;
        this.#send();
      } else if ("id" in message) {
        this.#waiting.get(message.id)?.(message.result ?? null);
        this.#waiting.delete(message.id);
      } else {
        hear(message.method, message.params);
      }
    }
    throw new Error("The language server has ended; reload the page for a new one.");
  }

  notify(method, params) {
    this.#queue.push({ jsonrpc: "2.0", method, params });
    this.#send();
  }

  /** The result, or null for an error. `token` is Monaco's, and cancels. */
  request(method, params, token) {
    const id = ++this.#id;
    this.#queue.push({ jsonrpc: "2.0", id, method, params });
    this.#send();
    token.onCancellationRequested(() => this.notify("$/cancelRequest", { id }));
    return new Promise((resolve) => this.#waiting.set(id, resolve));
  }

  async #send() {
    if (this.#sending || !this.#session) return;
    this.#sending = true;
    while (this.#queue.length) {
      const body = JSON.stringify(this.#queue.splice(0));
      await fetch(`/sessions/${this.#session}`, { method: "POST", body }).catch(() => {}); // run() says that it ended
    }
    this.#sending = false;
  }
}
