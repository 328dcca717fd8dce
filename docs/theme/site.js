"use strict";
// Menu on small screens, light or dark, copying code, and the search. Without it the pages read all the same.
const root = document.documentElement;
const up = document.currentScript.dataset.up;
const find = (selector) => document.querySelector(selector);
const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
const remember = (value) => { try { localStorage.setItem("theme", value); } catch { /* a browser may forbid it */ } };

root.classList.add("scripted");
if (remembered()) root.dataset.theme = remembered();

const theme = find(".theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  remember(root.dataset.theme);
});

const menu = find(".menu");
menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(find("#menu").classList.toggle("open")));
});
find("#menu [aria-current]")?.scrollIntoView({ block: "nearest" });
scrollTo(0, location.hash ? scrollY : 0);

for (const block of document.querySelectorAll("pre.code")) {
  const copy = document.createElement("button");
  copy.className = "copy";
  copy.textContent = "copy";
  copy.addEventListener("click", async () => {
    const text = block.querySelector("code").textContent;
    const commands = text.split("\n").filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
    await navigator.clipboard.writeText(commands.length ? commands.join("\n") : text);
    copy.textContent = "copied";
  });
  block.append(copy);
}

const query = find("#query");
const found = find("#found");
query.hidden = false;
query.addEventListener("focus", () => {
  if (window.SEARCH || find("script[data-search]")) return;
  const script = document.createElement("script");
  script.dataset.search = "";
  script.src = `${up}/theme/search.js`;
  script.addEventListener("load", show);
  document.head.append(script);
});
query.addEventListener("input", show);
query.addEventListener("keydown", (event) => { if (event.key === "Enter") found.querySelector("a")?.click(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/input|textarea/i.test(document.activeElement.tagName)) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape") {
    query.value = "";
    show();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const links = [...found.querySelectorAll("a")];
    if (!links.length || !find("search").contains(document.activeElement)) return;
    event.preventDefault();
    const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    (links[at] || query).focus();
  }
});
document.addEventListener("click", (event) => { if (!find("search").contains(event.target)) found.hidden = true; });

function show() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.replaceChildren();
  found.hidden = !words.length || !window.SEARCH;
  if (found.hidden) return;
  const hits = [];
  for (const [page, title, place, text] of window.SEARCH) {
    const [inPage, inTitle, inText] = [page, title, text].map((part) => part.toLowerCase());
    if (!words.every((word) => inPage.includes(word) || inTitle.includes(word) || inText.includes(word))) continue;
    let weight = 0;
    for (const word of words) weight += 8 * inTitle.includes(word) + 4 * inPage.includes(word) + inText.includes(word);
    hits.push({ weight, page, title, place, text, inText });
  }
  hits.sort((a, b) => b.weight - a.weight);
  for (const hit of hits.slice(0, 20)) {
    const link = document.createElement("a");
    link.href = `${up}/${hit.place}`;
    link.textContent = hit.page === hit.title ? hit.title : `${hit.page} › ${hit.title}`;
    link.append(excerpt(hit, words[0]));
    const item = document.createElement("li");
    item.append(link);
    found.append(item);
  }
  if (!hits.length) {
    const item = document.createElement("li");
    item.textContent = "nothing found";
    found.append(item);
  }
}

function excerpt(hit, word) {
  const small = document.createElement("small");
  const at = hit.inText.indexOf(word);
  if (at < 0) {
    small.textContent = hit.text.slice(0, 110);
    return small;
  }
  const marked = document.createElement("mark");
  marked.textContent = hit.text.slice(at, at + word.length);
  small.append(hit.text.slice(Math.max(0, at - 40), at), marked, hit.text.slice(at + word.length, at + word.length + 80));
  return small;
}
