// Requests to this server, with the key that was typed here; it stays in this tab.
const KEY = "strata-key";
const key = () => sessionStorage.getItem(KEY) ?? "";

/** A reply that is no success; `status` is the HTTP status. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Fetch `path`, relative to the page; throws `Refused`, or what `fetch` throws. */
export async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = "Bearer " + key();
  const reply = await fetch(path, { cache: "no-store", ...options, headers });
  if (!reply.ok) throw new Refused(reply.status, await reasonOf(reply));
  return reply;
}

async function reasonOf(reply) {
  const text = await reply.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 200) || "HTTP status " + reply.status;
  }
}

/** What to say about an error, to a person. */
export function sayError(error) {
  if (error.status === 401) return key() ? "the server does not know this key" : "this server asks for a key";
  if (error.status === 503) return "loading the model";
  return error instanceof TypeError ? "the server does not answer" : error.message;
}

/** The page's field for a key: `ask` shows it, `changed` is called when there is another one. */
export function keyField(changed) {
  const line = document.getElementById("keyline");
  const field = document.getElementById("key");
  field.value = key();
  line.hidden = !key();
  field.addEventListener("change", () => {
    sessionStorage.setItem(KEY, field.value.trim());
    changed();
  });
  return { ask: () => (line.hidden = false) };
}
