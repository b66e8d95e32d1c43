// Checks the built site's search: each word of search-words.json finds its page as the first or second result.
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

// The library of VitePress's own search. Another version may not read the index.
const { default: MiniSearch } = await import(createRequire(import.meta.resolve('vitepress')).resolve('minisearch'))
const { indexOptions, searchOptions } = await import('./search-options.mjs')

const chunks = new URL('../../target/site/assets/chunks/', import.meta.url)
const name = readdirSync(chunks).find((file) => file.startsWith('@localSearchIndex'))
const { default: index } = await import(new URL(name, chunks))
const search = MiniSearch.loadJSON(index, {
  fields: ['title', 'titles', 'text'],
  storeFields: ['title', 'titles'],
  searchOptions,
  ...indexOptions,
})

const words = JSON.parse(readFileSync(new URL('search-words.json', import.meta.url), 'utf8'))
const all = process.argv.includes('--all')
let missed = 0
for (const [word, page] of Object.entries(words)) {
  const results = search.search(word).slice(0, 5).map(({ id }) => id.slice(1).replace('.html', '.md'))
  const found = results.slice(0, 2).some((id) => id.split('#')[0] === page)
  if (!found) missed += 1
  if (!found || all) console.error(`search: ${found ? 'ok' : 'MISSED'} \`${word}\`, ${page}: ${results.join(', ')}`)
}
console.log(`search: ${Object.keys(words).length} words, ${missed} without their page among the first two results`)
process.exitCode = missed > 0 ? 1 : 0
