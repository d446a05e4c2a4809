// Ranks what a search finds: pages of the guide first, notebooks and ledgers last.
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

// The share of the words searched for that are in the title of a page.
const shareInTitle = (title) => {
  const words = new URLSearchParams(location.search).get("q").toLowerCase().split(/\W+/);
  return words.filter((word) => title.toLowerCase().includes(word)).length / words.length;
};

var Scorer = {
  score: ([page, title, anchor, descr, score, file, kind]) => {
    const [, weight] = WEIGHTS.find(([start]) => page.startsWith(start)) || [, 1];
    const isSection = kind === "title" && anchor;
    return score * weight * (isSection ? 0.4 : 1 + shareInTitle(title));
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
