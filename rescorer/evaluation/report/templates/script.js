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

  // Of long lists, the bodies after the first are comments, and become elements when somebody opens them.
  const build = (details) => {
    const kept = [...details.childNodes].find((node) => node.nodeType === Node.COMMENT_NODE);
    if (kept) kept.replaceWith(new DOMParser().parseFromString(kept.data, "text/html").body.firstElementChild);
  };
  list.addEventListener("toggle", (event) => build(event.target), true);
  const items = [...list.children].map((details, order) => ({
    details,
    order,
    id: details.dataset.id,
    gain: Number(details.dataset.gain),
    errors: Number(details.dataset.errors),
    text: plain(`${details.dataset.id} | ${details.querySelector(".group")?.textContent ?? ""} | ${details.dataset.text}`),
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
