// Ranks what a search finds: the guide first, notebooks and ledgers last.
const GUIDE = "notebooks/guide/";
const WEIGHTS = [
  [GUIDE + "which_method", 3],
  [GUIDE + "howto/", 3],
  [GUIDE + "concepts/", 2.5],
  [GUIDE + "quick_start", 2.5],
  [GUIDE, 1.5],
  ["notebooks/", 0.8],
  ["experiments/", 0.5],
];

var Scorer = {
  // A page that is found by its title and by its text counts once, as the former.
  score: ([page, title, anchor, descr, score]) => {
    const found = WEIGHTS.find(([start]) => page.startsWith(start));
    return score * (found ? found[1] : 1);
  },
  objNameMatch: 11,
  objPartialMatch: 3,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
