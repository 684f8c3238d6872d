// Takes the place of the worker that llama-server's page has left in a browser, and retires: that
// one would go on showing a page that is no longer served here.
"use strict";
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(retire()));

async function retire() {
  await registration.unregister();
  await Promise.all((await caches.keys()).map((name) => caches.delete(name)));
  for (const page of await clients.matchAll({ type: "window" })) page.navigate(page.url);
}
