// The ways to the server: a key to it, streams of JSON, a value a line, and the language server of this page.

let key = ""; // of the whole server; in sessionStorage, it lasts as long as this tab

/** Get the key, for the token in the address or from an earlier load. */
export async function enter() {
  const token = location.hash.slice(1);
  history.replaceState(null, "", "/");
  addEventListener("hashchange", () => location.reload()); // an address with a token, put in by hand
  if (token) {
    key = token;
    sessionStorage.setItem("key", await ask("/key"));
  }
  key = sessionStorage.getItem("key") ?? "";
}

/** Post a value. An answer that refuses it is an error with a sentence, to which `advice` is added. */
async function post(path, value, { signal, advice = "" } = {}) {
  // Half of a surrogate pair is no text to the server; what stands in for it is as long.
  const body = JSON.stringify(value ?? null, (_, part) => (typeof part === "string" ? part.toWellFormed() : part));
  const headers = { Authorization: `Bearer ${key}` };
  const answer = await fetch(path, { method: "POST", headers, body, signal }).catch(() => gone(signal));
  if (!answer.ok) throw new Error((await answer.text()).trim() + advice);
  return answer;
}

/** What a connection that breaks is told as. */
function gone(signal) {
  throw signal?.aborted ? signal.reason : new Error("The demo has ended; start `caesura demo` again.");
}

export const ask = async (path) => (await post(path)).json();

/** The values of a stream as they come. `signal` ends it, and with it the work behind it. */
export async function* stream(path, value, signal) {
  const answer = await post(path, value, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(() => gone(signal));
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

/** A client of the language server. What is sent while a message is under way goes together with the next one, so
 * that all arrive in order. One that does not arrive ends it: the server would answer for another text. */
export class LanguageServer {
  #waiting = new Map();
  #queue = [];
  #sending = false;
  #session;
  #end = new AbortController();
  #id = 0;

  /** Connect, and hear until it ends, which is an error with a sentence; the others may be called at any time. */
  async run(hear) {
    try {
      for await (const message of stream("/sessions", null, this.#end.signal)) {
        if (message.type === "failed") throw new Error(message.message);
        if (message.session) {
          this.#session = message.session;
          this.#send();
        } else if ("id" in message) {
          this.#answer(message.id, message.result ?? null);
        } else {
          hear(message.method, message.params);
        }
      }
      throw new Error("The language server has ended; reload the page for a new one.");
    } finally {
      this.#close();
    }
  }

  notify(method, params) {
    this.#send({ jsonrpc: "2.0", method, params });
  }

  /** The result, or null for an error and where there is no server any more. `token` is Monaco's, and cancels. */
  request(method, params, token) {
    if (this.#end.signal.aborted) return null;
    const id = ++this.#id;
    const result = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.#send({ jsonrpc: "2.0", id, method, params });
    token.onCancellationRequested(() => this.notify("$/cancelRequest", { id }));
    return result;
  }

  #answer(id, result) {
    this.#waiting.get(id)?.(result);
    this.#waiting.delete(id);
  }

  /** `error` is what run() throws if it still hears. */
  #close(error) {
    this.#end.abort(error);
    this.#queue = [];
    for (const id of this.#waiting.keys()) this.#answer(id, null);
  }

  async #send(...messages) {
    if (this.#end.signal.aborted) return;
    this.#queue.push(...messages);
    if (this.#sending || !this.#session) return;
    this.#sending = true;
    try {
      while (this.#queue.length) {
        const advice = " Reload the page for ghost text.";
        await post(`/sessions/${this.#session}`, this.#queue.splice(0), { advice });
      }
    } catch (error) {
      this.#close(error);
    }
    this.#sending = false;
  }
}
