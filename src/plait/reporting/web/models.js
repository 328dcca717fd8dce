// A model from close: its spec, its cost, its drawing, and what to do with it.
const models = JSON.parse(document.getElementById("models")?.textContent ?? "{}");
let packed = null;
const unpack = () => {
  packed ??= (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (one) => one.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(whole).text());
  })();
  return packed;
};
const sheet = make("dialog", { id: "model", "aria-labelledby": "model-name" });
document.body.append(sheet);
sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });

const openModel = async (key) => {
  const { name, spec, facts, commands } = models[key];
  const picture = make("div", { class: "drawing" });
  const rows = facts.map(([what, value]) => make("tr", {}, make("th", { scope: "row" }, what), make("td", { class: "right" }, value)));
  const code = (text, what) => make("div", { class: "taken" }, make("code", {}, text), copyButton(text, what));
  const close = button("close", () => sheet.close(), { class: "close" });
  sheet.replaceChildren(make("header", {}, make("h3", { id: "model-name" }, name), close), code(spec, "the spec"),
    make("table", { class: "facts" }, make("tbody", {}, ...rows)), ...commands.map((each) => code(each, "the command")), picture);
  if (!sheet.open) sheet.showModal();
  const drawn = (await unpack()).drawings[key];
  if (drawn) picture.replaceChildren(document.importNode(new DOMParser().parseFromString(drawn, "image/svg+xml").documentElement, true));
};

const keyOf = (event) => {
  if (!(event.target instanceof Element) || event.target.closest("button, a, summary")) return undefined;
  const key = event.target.closest("[data-key]")?.dataset.key;
  return key !== undefined && models[key] && !getSelection().toString() ? key : undefined;
};
addEventListener("click", (event) => { const key = keyOf(event); if (key !== undefined) openModel(key); });
addEventListener("keydown", (event) => {
  if (event.key !== "Enter" && event.key !== " ") return;
  const key = keyOf(event);
  if (key !== undefined) { event.preventDefault(); openModel(key); }
});

for (const place of all("[data-take]")) {
  place.append(button("Download all of it (JSON)", async () => {
    save(JSON.stringify((await unpack()).document, null, 1), place.dataset.take, "application/json");
  }, { class: "take" }));
}
