// How the site's search reads and ranks sections. VitePress sends these functions to the browser as text, so they use
// nothing outside themselves.

export const indexOptions = {
  // Singular and plural are one word.
  processTerm: (term) => term.toLowerCase().replace(/([^su])s$/, '$1'),
}

export const searchOptions = {
  prefix: true,
  // A short word or a status code is not meant to be another one.
  fuzzy: (term) => (term.length < 5 || /\d/.test(term) ? false : 0.15),
  boost: { title: 4, titles: 2, text: 1 },
  // Guides come before pages that list everything, and the start of a page before its other sections.
  boostDocument: (id, _term, { titles }) =>
    (/^\/(reference|design)\//.test(id) ? 0.4 : /^\/guide\//.test(id) ? 1 : 0.6) * (titles.length === 0 ? 2 : 1),
}
