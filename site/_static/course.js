// What the theme leaves out for keyboards and screen readers: code that scrolls can be reached and is named.
addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".bd-article pre, .bd-article table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
