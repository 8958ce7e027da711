
// Renews the page in place while runs go on: only what differs is changed, so that focus, scroll position, the
// values being read, open details, sliders and filters stay as they are.
const UNTOUCHED = new Set(["open", "tabindex"]);
const keyOf = (node) => (node instanceof Element ? node.id || node.dataset.key || "" : "");
const alike = (a, b) => a && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
const isOwn = (node) => node instanceof HTMLElement && node.dataset.own !== undefined;
function morph(old, fresh) {
  if (!(old instanceof Element)) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name, value } of fresh.attributes)
    if (!UNTOUCHED.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes])
    if (!UNTOUCHED.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  const others = (node) => { while (node && isOwn(node)) node = node.nextSibling; return node; };
  let at = others(old.firstChild);
  for (const child of [...fresh.childNodes]) {
    const keyed = () => keyOf(child) && [...old.childNodes].find((node) => alike(node, child));
    const found = alike(at, child) ? at : keyed();
    if (!found) old.insertBefore(child, at);
    else if (found !== at) old.insertBefore(found, at);
    else at = others(at.nextSibling);
    if (found) morph(found, child);
  }
  while (at) {
    const following = others(at.nextSibling);
    at.remove();
    at = following;
  }
}

const words = document.getElementById("live-words"), time = document.getElementById("live-time");
const pause = document.getElementById("live-pause");
// A text is only written where it changes: every writing is read out by screen readers.
const say = (text) => { if (words.textContent !== text) words.textContent = text; };
const now = () => new Date().toLocaleTimeString("en-GB");
let version = document.documentElement.dataset.version, paused = false, since = now(), waiting = 0;
async function renew() {
  const state = await (await fetch("version")).json();
  if (state.version !== version) {
    const text = await (await fetch("./")).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of ["h1", "nav", "main"]) morph(document.querySelector(part), page.querySelector(part));
    document.title = page.title;
    version = page.documentElement.dataset.version;
    since = now();
    dress();
  }
  say(state.words);
  time.textContent = ` The page is of ${since}.`;
  return state.wait;
}
async function watch() {
  clearTimeout(waiting);
  let wait = 5;
  if (!paused && !document.hidden) {
    try {
      wait = await renew();
    } catch {
      say("The server does not answer.");
    }
  }
  clearTimeout(waiting);
  waiting = setTimeout(watch, 1000 * wait);
}
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  if (!paused) watch();
});
document.addEventListener("visibilitychange", watch);
watch();
