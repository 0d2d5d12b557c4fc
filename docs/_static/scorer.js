// Pages of public names before those that only mention a word; the changelog and the help of commands last.
var Scorer = {
  score: (result) => {
    const [page, , , , score] = result;
    if (page.includes("/api/")) return score + 8;
    return /CHANGELOG|generated\/commands/.test(page) ? score - 8 : score;
  },
  objNameMatch: 11, objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
