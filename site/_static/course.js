// What the theme leaves out for readers with a keyboard, a screen reader or a phone.
"use strict";

/** What is larger than its box scrolls by the arrow keys. */
function reachable(within) {
  for (const box of within.querySelectorAll("pre, table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  for (const box of within.querySelectorAll(".tag_scroll-output .cell_output")) box.tabIndex = 0;
}

/** Each figure is a button that opens it in a dialog, which Escape, its button and a tap close. */
function enlargeable(article) {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.ariaLabel = "Figure";
  dialog.innerHTML = '<form method="dialog"><button>Close</button></form><img alt="">';
  const picture = dialog.querySelector("img");
  picture.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  for (const image of article.querySelectorAll("img")) {
    if (image.closest("a, button")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Enlarge";
    button.className = `figure ${image.className}`; // a picture for dark pages is no button on a light one
    image.replaceWith(button);
    button.append(image);
    button.addEventListener("click", () => {
      picture.className = image.className;
      picture.src = image.src;
      picture.alt = image.alt;
      const fits = Math.min(0.96 * innerWidth, (0.88 * innerHeight * image.naturalWidth) / image.naturalHeight);
      picture.width = Math.max(fits, Math.min(image.naturalWidth, 2 * innerWidth));
      dialog.showModal();
    });
  }
}

addEventListener("DOMContentLoaded", () => {
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "navigation");
  sidebar?.setAttribute("aria-label", "Site");
  for (const toggle of document.querySelectorAll(".bd-sidebar-primary summary")) {
    toggle.setAttribute("aria-label", "Pages below " + toggle.closest("li").querySelector("a").textContent.trim());
  }
  // A fold is called by what it says; myst-nb calls all of them "Toggle hidden content".
  for (const fold of document.querySelectorAll("div.cell details.hide > summary")) fold.removeAttribute("aria-label");
  // A name like DistributedDataParallel may be continued where a word in it begins.
  for (const contents of document.querySelectorAll(".bd-sidebar-secondary")) {
    const texts = document.createTreeWalker(contents, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      node.data = node.data.replace(/\S{17,}/g, (name) => name.replace(/[a-z](?=[A-Z])|[._=/]/g, "$&\u200b"));
    }
  }
  const article = document.querySelector(".bd-article");
  if (!article) return; // the search page has none
  enlargeable(article);
  reachable(article);
  article.addEventListener("toggle", (event) => reachable(event.target), true); // what was folded had no width
  addEventListener("beforeprint", () => {
    for (const outcome of article.querySelectorAll("details.below-input")) outcome.open = true;
  });
});
