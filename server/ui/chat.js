// The page at `/`: one conversation, kept in this tab only.
import { keyField, sayError, send } from "./api.js";
import { EventReader, waitAtFirst, waitOf } from "./events.js";

const $ = (id) => document.getElementById(id);
let messages = [];
let running = null; // of the answer that is being written

const field = keyField(() => showState());
let timer = 0;

async function showState() {
  clearTimeout(timer);
  let wait = 5000;
  try {
    const model = (await (await send("v1/models")).json()).data[0];
    $("state").textContent = model.id + ", " + model.meta.n_ctx + " tokens of context";
    wait = 60_000;
  } catch (error) {
    $("state").textContent = sayError(error);
    if (error.status === 401) field.ask();
    if (error.status === 503) wait = 500;
  }
  timer = setTimeout(showState, wait);
}

function add(role, text = "") {
  const article = document.createElement("article");
  article.className = role;
  article.textContent = text;
  $("chat").append(article);
  article.scrollIntoView({ block: "end" });
  return article;
}

/** Where an answer is shown as it comes: what the model thinks, what it says, and a note. */
class Answer {
  constructor() {
    this.article = add("assistant");
    this.thought = make("details", "thought");
    this.thought.append(make("summary", "", "Thoughts"), (this.thoughts = make("div")));
    this.thought.open = true;
    this.thought.hidden = true;
    this.article.append(this.thought, (this.body = make("div", "said")), (this.note = make("div", "dim", "waiting")));
  }

  show(change) {
    const follow = $("chat").scrollHeight - $("chat").scrollTop - $("chat").clientHeight < 40;
    change();
    if (follow) $("chat").scrollTop = $("chat").scrollHeight;
  }

  /** How far the prompt is, and how long it may still take. */
  say() {
    this.note.textContent = [this.progress, this.wait].filter(Boolean).join("; ") || "waiting";
  }

  think(text) {
    this.thought.hidden = false;
    this.thoughts.append(text);
  }
}

function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}

async function answer(conversation) {
  const view = new Answer();
  const message = { role: "assistant", content: "" };
  running = new AbortController();
  $("stop").hidden = false;
  $("send").hidden = true;
  try {
    const reply = await send("v1/chat/completions", {
      method: "POST",
      signal: running.signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ messages: conversation, stream: true, return_progress: true }),
    });
    view.wait = waitAtFirst(reply.headers);
    view.say();
    const reader = new EventReader();
    for await (const text of pieces(reply)) {
      view.show(() => reader.feed(text).forEach((event) => take(event, view, message)));
    }
    if (!message.content && view.thought.hidden) view.note.textContent ||= "an empty answer";
  } catch (error) {
    if (error.name === "AbortError") view.note.textContent = "stopped";
    else {
      view.note.textContent = "";
      add("error", sayError(error));
      if (error.status === 401) field.ask();
    }
  }
  keep(message, conversation);
  running = null;
  $("stop").hidden = true;
  $("send").hidden = false;
}

async function* pieces(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; !(part = await reader.read()).done; ) yield part.value;
}

/** Show one event of the stream and take what belongs to the conversation; throws its errors. */
function take({ data, comment }, view, message) {
  if (comment !== undefined) {
    const wait = waitOf(comment);
    if (wait) {
      view.wait = wait;
      view.say();
    }
    return;
  }
  if (data === "[DONE]") return;
  const event = JSON.parse(data);
  if (event.error) throw new Error(event.error.message);
  const progress = event.prompt_progress;
  if (progress) {
    view.progress = "reading, " + progress.processed + " of " + progress.total + " tokens";
    view.say();
  }
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) view.think(delta.reasoning_content);
  if (delta.content) {
    view.body.append(delta.content);
    message.content += delta.content;
  }
  if (delta.content || delta.reasoning_content) view.note.textContent = "";
  if (choice?.finish_reason === "length") view.cut = true;
  if (event.timings) view.note.textContent = summary(event.timings) + (view.cut ? "; cut off, as there was no room for more" : "");
}

function summary(t) {
  const known = t.cache_n ? " (" + t.cache_n + " known before)" : "";
  const speed = t.predicted_per_second ? ", " + t.predicted_per_second.toFixed(1) + " per second" : "";
  return t.prompt_n + " tokens read" + known + ", " + t.predicted_n + " written" + speed;
}

/** Keep the answer; a question that got none goes back into the field, to be sent again. */
function keep(message, conversation) {
  if (message.content) {
    conversation.push(message);
    return;
  }
  const question = conversation.pop().content;
  if (conversation === messages && !$("text").value) $("text").value = question;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (running || !text) return;
  $("text").value = "";
  messages.push({ role: "user", content: text });
  add("user", text);
  answer(messages);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  $("chat").replaceChildren();
  $("text").focus();
});
showState();
