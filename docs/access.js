// The theme builds parts that keyboards and screen readers miss: what scrolls gets the focus, nested menus are no landmarks.
new MutationObserver(() => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .equation")) part.tabIndex = 0;
  for (const part of document.querySelectorAll(".md-code__nav, .md-nav .md-nav")) {
    part.setAttribute("role", "presentation");
    for (const name of ["aria-labelledby", "aria-label", "aria-expanded"]) part.removeAttribute(name);
  }
}).observe(document, { childList: true, subtree: true });
