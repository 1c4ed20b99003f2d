// What the theme leaves out for readers with a keyboard or a screen reader.
addEventListener("DOMContentLoaded", () => {
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "navigation");
  sidebar?.setAttribute("aria-label", "Site");
  for (const toggle of document.querySelectorAll(".bd-sidebar-primary summary")) {
    toggle.setAttribute("aria-label", "Pages below " + toggle.closest("li").querySelector("a").textContent.trim());
  }
  for (const box of document.querySelectorAll(".bd-article pre, .bd-article table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // scrolls by the arrow keys
  }
});
