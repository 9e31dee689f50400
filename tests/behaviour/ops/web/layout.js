// What does not fit: words that break inside, what reaches out of its cell, a page wider than its window.
(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility?.() || node.parentElement.closest("svg, option, code, .axis, #axis")) continue;
    for (const { 0: word, index } of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
      if (word.length < 15 && lines.size > 1) found.push(`breaks inside: ${word}`);
    }
  }
  for (const badge of document.querySelectorAll(".state")) {
    const cell = badge.closest("td, .line");
    if (badge.getBoundingClientRect().right > cell.getBoundingClientRect().right) found.push(`reaches out: ${badge.textContent}`);
  }
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > innerWidth) found.push(`wide: ${scrollWidth}`);
  return found;
})()
