// Typesets the formulas of a page with KaTeX, which is shipped with the site: no other host is asked for anything.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const display = element.textContent.trim().startsWith("\\[");
  const formula = element.textContent.trim().slice(2, -2);
  katex.render(formula, element, { displayMode: display, throwOnError: false });
  if (display) element.tabIndex = 0; // a formula wider than a phone scrolls, also by keys
});
