"use strict";
// Search, filter and sort the utterances. Without JavaScript, the list is complete and can be opened all the same.
(() => {
  const list = document.getElementById("list");
  if (!list) return;
  document.documentElement.classList.add("js");
  const search = document.getElementById("search");
  const filter = document.getElementById("filter");
  const sort = document.getElementById("sort");
  const expand = document.getElementById("expand");
  const matches = document.getElementById("matches");
  const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();

  // One line per reading, so that phrases are found in the reference and in what each system chose.
  const sentences = (details) => {
    const rows = [];
    for (const slot of details.querySelectorAll(".slots > div:not(.names)"))
      [...slot.children].forEach((cell, row) => {
        const word = cell.textContent.replace(/^\+ |^–$/, "");
        if (word) (rows[row] ??= []).push(word);
      });
    return rows.map((words) => words.join(" ")).join(" | ");
  };
  const items = [...list.children].map((details, order) => ({
    details,
    order,
    id: details.dataset.id,
    gain: Number(details.dataset.gain),
    errors: Number(details.dataset.errors),
    text: plain(`${details.dataset.id} | ${details.querySelector(".group")?.textContent ?? ""} | ${sentences(details)}`),
  }));
  const accepts = {
    "": () => true,
    better: (item) => item.gain > 0,
    worse: (item) => item.gain < 0,
    same: (item) => item.gain === 0,
    wrong: (item) => item.errors > 0,
  };
  const compare = {
    order: () => 0,
    gain: (a, b) => b.gain - a.gain,
    loss: (a, b) => a.gain - b.gain,
    errors: (a, b) => b.errors - a.errors,
    id: (a, b) => a.id.localeCompare(b.id, undefined, { numeric: true }),
  };

  const show = () => {
    const wanted = plain(search.value);
    let shown = 0;
    for (const item of items) {
      const visible = accepts[filter.value](item) && item.text.includes(wanted);
      item.details.hidden = !visible;
      shown += visible;
    }
    matches.textContent = shown === items.length ? "" : `${shown} of ${items.length}`;
  };
  search.addEventListener("input", show);
  filter.addEventListener("change", show);
  sort.addEventListener("change", () => {
    items.sort((a, b) => compare[sort.value](a, b) || a.order - b.order);
    list.append(...items.map((item) => item.details));
  });
  expand.addEventListener("click", () => {
    const visible = items.filter((item) => !item.details.hidden);
    const open = !visible.some((item) => item.details.open);
    for (const item of visible) item.details.open = open;
    expand.textContent = open ? "Close all shown" : "Open all shown";
  });
  show();
})();
