// Tables that can be sorted and taken along.
const FACTORS = { k: 1e3, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, "": 1 };
const valueOf = (text) => {
  const found = /([-+−]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s?([kKMGBT]?)(?![a-z])/.exec(text);
  return found ? Number(found[1].replaceAll(",", "").replace("−", "-")) * FACTORS[found[2]] : NaN;
};
const compare = (numbers, sign) => (a, b) => {
  if (!numbers) return sign * a.localeCompare(b);
  const [x, y] = [valueOf(a), valueOf(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
  return sign * (x - y);
};

const sortBy = (table, column) => {
  const heads = all("thead th", table), head = heads[column], body = table.tBodies[0];
  const numbers = head.classList.contains("right");
  const now = head.getAttribute("aria-sort");
  const up = now ? now === "descending" : !numbers;
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...body.rows], by = compare(numbers, up ? 1 : -1);
  body.append(...rows.sort((a, b) => by(a.cells[column].textContent, b.cells[column].textContent)));
};

const save = (text, name, kind) => {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: kind })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const asCsv = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => {
  const copy = cell.cloneNode(true);
  const parts = [...copy.querySelectorAll("code")].map((code) => { code.remove(); return code.textContent; });
  all("button.copy", copy).forEach((made) => made.remove());
  return quoted([copy.textContent.trim(), ...parts].filter(Boolean).join(" | "));
}).join(",")).join("\n") + "\n";

const copyText = async (text) => {
  try { await navigator.clipboard.writeText(text); return; } catch { /* not allowed here: the old way */ }
  const field = make("textarea", { class: "aside" });
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
};
const copyButton = (text, what) => {
  const made = button("copy", async () => {
    await copyText(text);
    made.textContent = "copied";
    setTimeout(() => { made.textContent = "copy"; }, 1500);
  }, { class: "copy", "aria-label": `Copy ${what}` });
  return made;
};

for (const place of all("code[data-copy], pre[data-copy]")) place.after(copyButton(place.textContent, place.dataset.copy));

for (const table of all(".scroll:not(.fixed) > table")) {
  all("thead th", table).forEach((head, column) => {
    if (!head.textContent || "unsortable" in table.dataset) return;
    head.replaceChildren(button(head.textContent, () => sortBy(table, column), { class: "sort" }));
  });
  const name = (table.dataset.name || "table").replaceAll(/[^\w-]+/g, "-");
  table.parentElement.append(button("CSV", () => save(asCsv(table), `${name}.csv`, "text/csv"),
    { class: "take", "aria-label": "Download this table as CSV" }));
  table.parentElement.dataset.rove = "button";
  settle(table.parentElement);
}
