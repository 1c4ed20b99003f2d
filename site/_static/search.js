// The search page. Every section of the book is in search-index.js (course/site/search.py), so no server is needed.
// A section is found if it has all typed words, but for those that are nearly everywhere ("the"). A word finds its other
// forms and longer words: "divides" finds "dividing". Headings count more than text, and rare words more than common ones.
"use strict";
(() => {
  const SHOWN = 30; // results
  const FEW = 5; // with fewer results, sections that lack a word are shown, too
  const EXCERPT = 220; // characters
  const COMMON = 0.2; // the share of sections from which on a word need not be there
  const WEIGHTS = [8, 5, 2, 1]; // of heading, names that the code defines, the page's title, text
  const input = document.querySelector(".bd-search-container input");
  const list = document.querySelector("ol.search");
  const status = document.querySelector(".bd-search-container [role=status]");
  const pagesWith = new Map(); // a heading: how many have it
  for (const [, , heading] of courseIndex.sections) pagesWith.set(heading, (pagesWith.get(heading) ?? 0) + 1);

  /** Chapters come before the package, a page's beginning before its sections, and a heading that many pages have last. */
  function rank(address, anchor, heading) {
    const kind = address.startsWith("notebooks/") ? 1.5 : address.startsWith("nanogpt/") ? 0.5 : 1;
    return kind * (anchor ? 1 : 1.3) * (pagesWith.get(heading) > 5 ? 0.3 : 1);
  }

  const entries = courseIndex.sections.map(([page, anchor, heading, text, names]) => {
    const [address, title] = courseIndex.pages[page];
    const where = anchor && title; // a page's own entry needs no other title
    const fields = [heading, names, where, text].map((text) => ({ text, small: text.toLowerCase() }));
    return { address: address + (anchor && `#${anchor}`), heading, where, text, fields, rank: rank(address, anchor, heading) };
  });

  const wordsOf = (text) => text.toLowerCase().match(/√|[\p{L}\p{N}_]+/gu) ?? [];

  /** A word without its ending: "dividing" is "divid", "running" is "run". */
  function stem(word) {
    const one = word.length > 3 ? word.replace(/(?<!s)s$/, "") : word;
    const short = one.replace(/(ation|ing|ied|ie|ed|er|e|y)$/, "");
    return short.length < 4 || short === one ? one : short.replace(/([bdgmnprt])\1$/, "$1");
  }

  /** A typed word, the beginnings that it looks for, and its forms. One or two letters stand for themselves. */
  function wanted(word) {
    const roots = ["√", "sqrt"].includes(word) ? ["√", "sqrt"] : [stem(word)];
    const rest = word.length < 3 && word !== "√" ? "(?![\\p{L}\\p{N}])" : "[\\p{L}\\p{N}]*";
    const pattern = `(?<![\\p{L}\\p{N}])(?:${roots.join("|")})${rest}`;
    return { word, roots, pattern, forms: new RegExp(pattern, "giu") };
  }

  /** How well a field has a word: 1 for the word, less for another form of it, least for a longer word; 0 without it. */
  function quality({ text, small }, { word, roots, forms }) {
    if (!roots.some((root) => small.includes(root))) return 0; // much faster than the pattern
    const there = (text.match(forms) ?? []).map((form) => form.toLowerCase());
    if (there.some((form) => form === word || roots.length > 1)) return 1;
    return there.some((form) => stem(form) === roots[0]) ? 0.8 : there.length && 0.4;
  }

  /** The sections that have the words, best first, and those of the words that matter. If few have all, those that lack one, too. */
  function search(words) {
    const rows = entries.map((entry) => ({ entry, has: words.map((word) => entry.fields.map((field) => quality(field, word))) }));
    const shares = words.map((_, i) => rows.filter((row) => row.has[i].some(Boolean)).length / rows.length);
    const rare = words.map((_, i) => shares[i] < COMMON);
    const needed = rare.some(Boolean) ? rare : words.map(() => true);
    for (const row of rows) {
      row.count = row.has.filter((fields, i) => needed[i] && fields.some(Boolean)).length;
      const scores = row.has.map((fields, i) => Math.log(1 + 1 / (shares[i] || 1)) * Math.max(...fields.map((q, f) => q * WEIGHTS[f])));
      const length = row.entry.heading.match(/√|[\p{L}\p{N}]+/gu)?.length ?? 1;
      const covered = sum(row.has.map(([heading]) => heading)) / length; // of two headings the one with few other words
      row.score = sum(scores) * (1 + covered) * row.entry.rank;
    }
    const most = Math.max(...rows.map((row) => row.count));
    const least = rows.filter((row) => row.count === most).length < FEW ? Math.max(1, most - 1) : most;
    const best = rows.filter((row) => row.count && row.count >= least).sort((a, b) => b.count - a.count || b.score - a.score);
    return { found: best.map((row) => row.entry), matter: words.filter((_, i) => needed[i]) };
  }

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  /** The first of the sentences that have most of the words, and what follows. */
  function excerpt(text, words) {
    const sentences = text.split(/(?<=[.?!:]) /);
    const counts = sentences.map((sentence) => words.filter(({ forms }) => sentence.search(forms) >= 0).length);
    const first = counts.indexOf(Math.max(...counts));
    const rest = sentences.slice(first).join(" ");
    return (first ? "… " : "") + (rest.length > EXCERPT ? rest.slice(0, EXCERPT).replace(/\S*$/, "…") : rest);
  }

  /** An element with the text, its words marked. */
  function marked(tag, text, words) {
    const element = document.createElement(tag);
    const pattern = new RegExp(`(${words.map((word) => word.pattern).join("|")})`, "giu");
    text.split(pattern).forEach((part, i) => {
      element.append(i % 2 ? Object.assign(document.createElement("mark"), { textContent: part }) : part);
    });
    return element;
  }

  function result(entry, words) {
    const item = document.createElement("li");
    const link = marked("a", entry.heading, words);
    link.href = entry.address;
    item.append(link, Object.assign(document.createElement("span"), { className: "where", textContent: entry.where }));
    item.append(marked("p", excerpt(entry.text, words), words));
    return item;
  }

  function show() {
    const words = [...new Set(wordsOf(input.value))].map(wanted);
    const { found, matter } = words.length ? search(words) : { found: [] };
    list.replaceChildren(...found.slice(0, SHOWN).map((entry) => result(entry, matter)));
    const count = `${found.length} section${found.length > 1 ? "s" : ""} found`;
    const says = found.length > SHOWN ? `${count}, the first ${SHOWN} are below` : found.length ? count : "Nothing found";
    status.textContent = words.length ? says : "";
  }

  /** The arrows lead from the field to the results and through them. */
  function move(event) {
    const places = [input, ...list.querySelectorAll("a")];
    const at = places.indexOf(document.activeElement);
    const next = places[at + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? NaN)];
    if (at < 0 || !next) return;
    event.preventDefault();
    next.focus();
  }

  addEventListener("keydown", move);
  input.addEventListener("input", show);
  input.value = new URLSearchParams(location.search).get("q") ?? "";
  input.focus();
  show();
})();
