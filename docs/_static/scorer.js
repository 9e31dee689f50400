// Read by Sphinx's search (html_search_scorer). The numbers are Sphinx's own.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  // A result by a word of docs/conf.py's SEARCHED has the page's title only: add the section's.
  score: (result) => {
    const [docname, page, anchor, , score, , kind] = result;
    if (kind === "index") {
      const { docnames, alltitles } = Search._index;
      for (const [title, places] of Object.entries(alltitles)) {
        for (const [file, id] of places) {
          if (docnames[file] === docname && "#" + id === anchor) result[1] = `${page} > ${title}`;
        }
      }
    }
    return score;
  },
};
