// Event streams as this server writes them: data, and comments that tell about the wait.

/** Takes the text of a stream in any pieces; gives back what is complete: {data} or {comment}. */
export class EventReader {
  #rest = "";

  feed(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.flatMap(readBlock);
  }
}

function readBlock(block) {
  const found = [];
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    else if (line.startsWith(":")) found.push({ comment: line.slice(1).trim() });
  }
  if (data.length) found.push({ data: data.join("\n") });
  return found;
}

const WAIT = /^queue position (\d+)(?:, predicted first token in (\d+) ms(?: \((\d+)\.\.(\d+)\))?)?/;

/** What a comment says about the wait, in words; null: it says nothing. */
export function waitOf(comment) {
  const match = WAIT.exec(comment);
  return match && sayWait(...match.slice(1));
}

/** The same from the headers of a reply, which tell how it was when the request arrived. */
export function waitAtFirst(headers) {
  const before = headers.get("x-queue-position");
  return before && sayWait(before, headers.get("x-predicted-ttft-ms"));
}

function sayWait(before, ms, low, high) {
  const place = (before === "0" ? "none" : before) + " before this one";
  if (!ms) return place;
  const range = low ? " (" + seconds(low) + " to " + seconds(high) + ")" : "";
  return place + ", first token expected " + seconds(ms) + range + " after it was sent";
}

/** Milliseconds for people. */
export function seconds(ms) {
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 60_000) return (ms / 1000).toFixed(1) + " s";
  return Math.floor(ms / 60_000) + " min " + Math.floor((ms % 60_000) / 1000) + " s";
}
