// Histograms of Prometheus' text format.

const SAMPLE = /^([\w:]+)\{(.*)\} (\S+)$/;
const BOUND = /(?:^|,)le="([^"]+)"/;

/** The buckets of a histogram, all labels together: upper bound -> count up to it. */
export function bucketsOf(text, name) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = SAMPLE.exec(line);
    if (match?.[1] !== name + "_bucket") continue;
    const bound = BOUND.exec(match[2])?.[1];
    if (bound === undefined) continue;
    const upper = bound === "+Inf" ? Infinity : Number(bound);
    found.set(upper, (found.get(upper) ?? 0) + Number(match[3]));
  }
  return new Map([...found].sort((a, b) => a[0] - b[0]));
}

/** What came between two looks at a histogram; all of `now` where its counts were reset. */
export function since(now, before) {
  const total = (buckets) => buckets.get(Infinity) ?? 0;
  if (!before || total(now) < total(before)) return now;
  return new Map([...now].map(([upper, count]) => [upper, count - (before.get(upper) ?? 0)]));
}

/** The value below which a share `q` of the counted ones lie, linear in its bucket; null: none. */
export function quantile(buckets, q) {
  const total = buckets.get(Infinity) ?? 0;
  if (!total) return null;
  let lower = 0;
  let below = 0;
  for (const [upper, count] of buckets) {
    if (count >= q * total && count > below) {
      if (upper === Infinity) return lower;
      return lower + (upper - lower) * ((q * total - below) / (count - below));
    }
    lower = upper;
    below = count;
  }
  return lower;
}
