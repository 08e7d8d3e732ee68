"use strict";
// Show the utterances page by page, and search, filter and sort all of them. The page has them as data; elements
// exist of those that were seen. They are equal to those that the template writes of the first utterances.
(() => {
  const list = document.getElementById("list");
  if (!list) return;
  document.documentElement.classList.add("js");
  const ids = ["search", "filter", "sort", "expand", "matches", "pages", "previous", "range", "next"];
  const [search, filter, sort, expand, matches, pages, previous, range, next] = ids.map((id) => document.getElementById(id));
  const PAGE_SIZE = 200;
  const { names, hasFiles, rows } = JSON.parse(document.getElementById("data").textContent);
  const items = rows.map(([id, group, before, after, shown, readings, slots, tables], order) => ({
    id, group, before, errors: after, gain: before - after, shown, readings, slots, tables, order,
  }));
  const count = (number) => number.toLocaleString("en");

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const span = (className, ...children) => make("span", className ? { class: className } : {}, ...children);
  const number = (tag, text, className = "n") => make(tag, tag === "th" ? { scope: "col", class: className } : { class: className }, text);

  // Return the kind and the word of a reading in a slot, as _pack_slot writes them.
  const cellOf = (slot, reading) => {
    if (typeof slot === "string") return ["c", slot];
    const cell = slot[reading + 1];
    return cell ? [cell[0], cell.slice(1)] : ["c", slot[0]];
  };
  const textOf = (item, reading) => item.slots.map((slot) => cellOf(slot, reading)[1]).filter(Boolean).join(" ");
  const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
  const searchable = (item) => {
    const reference = item.slots.map((slot) => (typeof slot === "string" ? slot : slot[0])).filter(Boolean).join(" ");
    return plain([item.id, item.group, reference, ...item.readings.map((_, reading) => textOf(item, reading))].join(" | "));
  };

  const KINDS = { s: "sub", d: "del", i: "ins" };
  const buildCell = ([kind, word]) => span(KINDS[kind], kind === "d" ? "–" : kind === "i" ? `+ ${word}` : word);
  const buildSlots = (item) => {
    const heads = item.readings.map(([errors, name]) => span("", make("i", {}, errors), names[name]));
    const slots = item.slots.map((slot) => {
      const cells = item.readings.map((_, reading) => buildCell(cellOf(slot, reading)));
      return make("div", {}, span("", typeof slot === "string" ? slot : slot[0]), ...cells);
    });
    return make("div", { class: "slots" }, make("div", { class: "names" }, span("", make("i", {}), "reference"), ...heads), ...slots);
  };
  const buildTable = (item, [file, components, hypotheses, rows]) => {
    const head = (text) => make("th", { scope: "col" }, text);
    const heads = [
      number("th", "rank"), number("th", "errors"), head(hasFiles ? `hypothesis of ${names[file]}` : "hypothesis"),
      head("chosen by"), number("th", "total"), ...components.map((name) => number("th", names[name])),
    ];
    const lines = rows.map(([rank, errors, text, generated, by, [total, ...values]]) => {
      const note = generated ? [" ", span("note", `(${generated})`)] : [];
      return make(
        "tr", {}, number("td", rank), number("td", errors), make("td", { class: "wide" }, text, ...note),
        make("td", { class: "by" }, names[by]), number("td", total, "n strong"), ...values.map((value) => number("td", value)),
      );
    });
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines));
    const label = `Scores of hypotheses of ${item.id}`;
    const parts = [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table)];
    if (hypotheses > rows.length) {
      const caption = `${rows.length} of ${count(hypotheses)} hypotheses: those that a system chose, and the highest totals.`;
      parts.push(make("p", { class: "caption" }, caption));
    }
    return parts;
  };
  const buildBody = (item) => {
    const address = make("a", { class: "here", href: `#u:${item.id}`, title: "Address of this utterance" }, "#");
    return make("div", { class: "body" }, address, buildSlots(item), ...item.tables.flatMap((table) => buildTable(item, table)));
  };
  const buildRow = (item) => {
    const { id, group, before, errors, gain } = item;
    const change = gain > 0 ? "better" : gain < 0 ? "worse" : "same";
    const saved = gain ? `${gain > 0 ? "+" : ""}${count(gain)}`.replace("-", "−") : "";
    const cells = [span("id", id), span("n", `${before} → ${errors}`), span(`n ${change}`, saved), span("text", textOf(item, item.shown))];
    if (list.classList.contains("grouped")) cells.splice(1, 0, span("group", group));
    const row = make("details", { class: "utterance", id: `u:${id}` }, make("summary", {}, ...cells));
    row.addEventListener("toggle", () => row.childElementCount > 1 || row.append(buildBody(item)));
    return row;
  };

  const accepts = {
    "": () => true,
    better: (item) => item.gain > 0,
    worse: (item) => item.gain < 0,
    same: (item) => item.gain === 0,
    wrong: (item) => item.errors > 0,
  };
  const byId = new Intl.Collator(undefined, { numeric: true }).compare;
  const compare = {
    order: () => 0,
    gain: (a, b) => b.gain - a.gain,
    loss: (a, b) => a.gain - b.gain,
    errors: (a, b) => b.errors - a.errors,
    id: (a, b) => byId(a.id, b.id),
  };
  let found = items;
  let start = 0;

  const show = (first) => {
    start = first;
    const end = Math.min(start + PAGE_SIZE, found.length);
    list.replaceChildren(...found.slice(start, end).map((item) => (item.row ??= buildRow(item))));
    matches.textContent = found.length === items.length ? "" : `${count(found.length)} of ${count(items.length)}`;
    pages.hidden = found.length <= PAGE_SIZE;
    range.textContent = `${count(start + 1)} to ${count(end)} of ${count(found.length)}`;
    previous.disabled = start === 0;
    next.disabled = end === found.length;
    expand.textContent = "Open all shown";
  };
  const find = () => {
    const wanted = plain(search.value);
    const matching = (item) => accepts[filter.value](item) && (!wanted || (item.text ??= searchable(item)).includes(wanted));
    found = items.filter(matching).sort((a, b) => compare[sort.value](a, b) || a.order - b.order);
    show(0);
  };
  const turn = (first) => {
    show(first);
    list.scrollIntoView();
  };
  const follow = () => {
    const hash = location.hash.slice(1);
    let address = hash;
    try {
      address = decodeURIComponent(hash);
    } catch {} // an id may have a percent sign
    const target = items.find((item) => [hash, address].includes(`u:${item.id}`));
    if (!target) return;
    if (!found.includes(target)) {
      search.value = filter.value = "";
      find();
    }
    const place = found.indexOf(target);
    show(place - (place % PAGE_SIZE));
    target.row.open = true;
    target.row.scrollIntoView();
  };
  search.addEventListener("input", find);
  filter.addEventListener("change", find);
  sort.addEventListener("change", find);
  previous.addEventListener("click", () => turn(start - PAGE_SIZE));
  next.addEventListener("click", () => turn(start + PAGE_SIZE));
  expand.addEventListener("click", () => {
    const open = !list.querySelector("[open]");
    for (const row of list.children) row.open = open;
    expand.textContent = open ? "Close all shown" : "Open all shown";
  });
  addEventListener("hashchange", follow);
  find();
  follow();
})();
