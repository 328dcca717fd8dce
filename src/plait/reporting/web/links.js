// What is pointed at says its hint and lights up wherever else it is on the page; arrow keys move inside a group.
const all = (what, where = document) => [...where.querySelectorAll(what)];

const make = (name, attributes = {}, ...children) => {
  const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

const button = (words, action, attributes = {}) => {
  const made = make("button", { type: "button", ...attributes }, words);
  made.addEventListener("click", action);
  return made;
};

const tip = make("div", { id: "tip", role: "status", hidden: true });
document.body.append(tip);

const showTip = (words, x, y) => {
  tip.textContent = words;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 14) : y + 18) + "px";
};

const light = (key) => {
  for (const was of all(".lit")) was.classList.remove("lit");
  if (key === undefined) return;
  for (const found of all("[data-key]")) if (found.dataset.key === key) found.classList.add("lit");
};

// Titles of drawings become hints: at once, in several lines, and for the keyboard.
for (const title of all(".chart .hover > title, .chart rect > title")) {
  const mark = title.parentElement;
  mark.dataset.hint = title.textContent;
  mark.setAttribute("aria-label", title.textContent);
  title.remove();
}

const pointed = (event) => (event.target instanceof Element ? event.target.closest("[data-hint], [data-key]") : null);
const hideTip = () => { tip.hidden = true; };
addEventListener("pointermove", (event) => {
  const mark = pointed(event);
  if (mark && mark.dataset.hint) showTip(mark.dataset.hint, event.clientX, event.clientY); else hideTip();
});
addEventListener("pointerover", (event) => light(pointed(event)?.dataset.key));
addEventListener("focusin", (event) => {
  const mark = pointed(event);
  light(mark?.dataset.key);
  tellFocused(mark);
});
// Focus from the keyboard may scroll the page: then the hint goes along.
const tellFocused = (mark) => {
  if (!mark || !mark.dataset.hint || !mark.matches(":focus-visible")) { hideTip(); return; }
  const box = mark.getBoundingClientRect();
  showTip(mark.dataset.hint, box.right, box.top);
};
addEventListener("focusout", () => { hideTip(); light(); });
addEventListener("scroll", () => tellFocused(document.activeElement?.closest("[data-hint]")), { passive: true });

// A group with `data-rove` (a selector of what is in it) is one stop of the Tab key.
const settle = (group) => {
  const items = all(group.dataset.rove, group);
  const now = items.find((item) => item.getAttribute("tabindex") === "0") ?? items[0];
  for (const item of items) item.setAttribute("tabindex", item === now ? "0" : "-1");
};
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const group = event.target instanceof Element && event.target.closest("[data-rove]");
  if (!group || !(event.key in STEPS) || event.target.matches("input")) return;
  const items = all(group.dataset.rove, group);
  const from = items.indexOf(event.target);
  if (from < 0) return;
  event.preventDefault();
  const to = items[Math.max(0, Math.min(items.length - 1, from + STEPS[event.key]))];
  for (const item of items) item.setAttribute("tabindex", item === to ? "0" : "-1");
  to.focus();
});
