// A model from close: its spec, its cost, its drawing, and what to do with it.
const models = JSON.parse(document.getElementById("models")?.textContent ?? "{}");
// On a page of several records, what a model is called by holds within its record.
const scopeOf = (place) => place.closest("[data-scope]")?.dataset.scope ?? "";
const modelOf = (place, key) => models[scopeOf(place) + key];
let packed = null;
const unpack = () => {
  packed ??= (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (one) => one.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(whole).text());
  })();
  return packed;
};
// On a page that is served, cost and drawing are at an address.
const details = async (key) => {
  const known = models[key];
  if (known.more) {
    try {
      const found = await (await fetch(known.more)).json();
      Object.assign(known, { facts: found.facts, drawing: found.drawing });
    } catch { return known; } // the server is away: what is here is shown
    delete known.more;
  } else if (known.drawing === undefined && document.getElementById("packed")) known.drawing = (await unpack()).drawings[key];
  return known;
};
const sheet = make("dialog", { id: "model", "aria-labelledby": "model-name" });
document.body.append(sheet);
sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });

const openModel = async (key, plain) => {
  const { name, spec, commands } = models[key];
  const picture = make("div", { class: "drawing" });
  const body = make("tbody");
  const list = () => body.replaceChildren(...models[key].facts.map(([what, value]) => make("tr", {},
    make("th", { scope: "row" }, what), make("td", { class: "right" }, value))));
  list();
  const code = (text, what) => make("div", { class: "taken" }, make("code", {}, text), copyButton(text, what));
  const close = button("close", () => sheet.close(), { class: "close" });
  const choose = button(picked.has(plain) ? "do not compare" : "compare", () => {
    if (!picked.delete(plain)) picked.add(plain);
    sheet.close();
    repick();
  }, { class: "choose" });
  const actions = make("span", {}, ...(document.querySelector("[data-explore]") ? [choose, " "] : []), close);
  sheet.replaceChildren(make("header", {}, make("h3", { id: "model-name" }, name), actions), code(spec, "the spec"),
    make("table", { class: "facts" }, body), ...commands.map((each) => code(each, "the command")), picture);
  if (!sheet.open) sheet.showModal();
  const { drawing: drawn } = await details(key);
  list();
  if (drawn) picture.replaceChildren(document.importNode(new DOMParser().parseFromString(drawn, "image/svg+xml").documentElement, true));
};

const keyOf = (event) => {
  if (!(event.target instanceof Element) || event.target.closest("button, a, summary, input, label")) return undefined;
  const key = event.target.closest("[data-key]")?.dataset.key;
  return key !== undefined && modelOf(event.target, key) && !getSelection().toString() ? key : undefined;
};
const openFrom = (event, key) => openModel(scopeOf(event.target) + key, key);
addEventListener("click", (event) => { const key = keyOf(event); if (key !== undefined) openFrom(event, key); });
addEventListener("keydown", (event) => {
  if (event.key !== "Enter" && event.key !== " ") return;
  const key = keyOf(event);
  if (key !== undefined) { event.preventDefault(); openFrom(event, key); }
});

for (const place of all("[data-take]")) {
  place.append(button("Download all of it (JSON)", async () => {
    save(JSON.stringify((await unpack()).document, null, 1), place.dataset.take, "application/json");
  }, { class: "take" }));
}
