// The theme makes a landmark without a name of every copy button, lists with the same name, and tables that no key can scroll.
// Here each has a name of its own, and a table that scrolls can have the focus. The theme adds them late: hence the observer.
// A figure of several panels is marked as wide, so that on a narrow screen it scrolls.
let count = 0;
const names = new Map(); // of lists, by name: the first one that has it
const mend = () => {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((part) => {
    part.ariaLabel = `Code block ${++count}`;
  });
  document.querySelectorAll("nav[aria-label]").forEach((list) => {
    if (!names.has(list.ariaLabel)) names.set(list.ariaLabel, list);
    if (names.get(list.ariaLabel) !== list) {
      list.ariaLabel = `${list.ariaLabel} ${++count}`;
      names.set(list.ariaLabel, list);
    }
  });
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((box) => {
    box.tabIndex = 0;
  });
};
const widen = (image) => {
  const wide = image.naturalWidth >= Math.max(640, 1.7 * image.naturalHeight);
  if (!wide || image.parentElement.tagName !== "P") return;
  image.parentElement.classList.add("wide-figure");
  image.parentElement.tabIndex = 0;
};
document.querySelectorAll(".md-typeset p > img:only-child").forEach((image) => {
  if (image.complete) widen(image);
  else image.addEventListener("load", () => widen(image));
});
mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
