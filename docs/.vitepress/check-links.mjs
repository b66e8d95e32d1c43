// Checks the built site: each link leads to a page that exists and has the anchor, and no page loads anything from
// another host.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { fileURLToPath } from 'node:url'

const site = fileURLToPath(new URL('../../target/site/', import.meta.url))
const files = readdirSync(site, { recursive: true }).filter((name) => name.endsWith('.html') && name !== '404.html')
const pages = new Map(files.map((name) => [`/${name}`, readFileSync(site + name, 'utf8')]))
const anchors = new Map([...pages].map(([path, html]) => [path, new Set(attributes(html, 'id'))]))

/** Returns the values of an attribute of all tags. */
function attributes(html, name, tag = '[a-z][a-z0-9]*') {
  const tags = html.matchAll(new RegExp(`<${tag}\\s[^>]*?\\b${name}="([^"]*)"`, 'g'))
  return Array.from(tags, ([, value]) => value.replaceAll('&amp;', '&').replaceAll('&quot;', '"'))
}

/** Returns why a link of a page does not work, or nothing if it does. */
function problem(page, href) {
  if (/^[a-z][a-z+.-]*:/i.test(href)) return
  const [path, anchor] = decodeURI(href).split('#')
  let target = path ? posix.join(posix.dirname(page), path) : page
  if (path.startsWith('/')) target = posix.normalize(path)
  if (target.endsWith('/')) target += 'index.html'
  if (!pages.has(target)) return existsSync(site + target) ? undefined : 'there is no such page'
  if (anchor && !anchors.get(target).has(anchor)) return `the page has no heading \`#${anchor}\``
}

/** Returns the source of a page. */
function source(page) {
  const name = page.slice(1).replace(/\.html$/, '.md').replace(/(^|\/)index\.md$/, '$1README.md')
  return name.includes('/') ? `docs/${name}` : name
}

let links = 0
const problems = new Set()
for (const [page, html] of pages) {
  for (const href of attributes(html, 'href', 'a')) {
    links += 1
    const reason = problem(page, href)
    if (reason) problems.add(`${source(page)}: link to ${href}: ${reason}`)
  }
  for (const url of [...attributes(html, 'src'), ...attributes(html, 'href', 'link')]) {
    const reason = /^(https?:)?\/\//.test(url) ? 'it is on another host' : problem(page, url)
    if (reason) problems.add(`${source(page)}: file ${url}: ${reason}`)
  }
}
for (const line of problems) console.error(line)
console.log(`links: ${links} in ${pages.size} pages, ${problems.size} broken`)
process.exitCode = problems.size > 0 ? 1 : 0
