// The pages of the site, and their order in the sidebar.
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** The checkout. */
export const repository = fileURLToPath(new URL('../../', import.meta.url))

/** Pages at the root of the repository, in the order of the sidebar. README.md is the home page. */
const project = ['CHANGELOG', 'SECURITY', 'CONTRIBUTING', 'ARCHITECTURE']

/** Returns the path on the site of a file of the repository, or nothing if the file is no page. */
export function pagePath(file: string): string | undefined {
  if (file === 'README.md') return 'index.md'
  if (project.some((name) => file === `${name}.md`)) return file
  const [, folder, name] = /^docs\/(guide|reference|design)\/([^/]+)\.md$/.exec(file) ?? []
  if (folder) return name === 'README' ? `${folder}/index.md` : `${folder}/${name}.md`
}

/** Files that pages link to, on the site and in `docs`. */
export const downloads = ['reference/config.schema.json', 'reference/performance.json']

/** Returns the groups of the sidebar. The first one and that of the current page are open. */
export function sidebar() {
  const groups = [...guides(), group('Reference', 'reference'), group('Design', 'design'), group('Project', '')]
  return groups.map((it, at) => ({ ...it, collapsed: at > 0 }))
}

/** Returns the groups and links of docs/guide/README.md. A guide that it does not list fails the build. */
function guides() {
  const groups: { text: string; items: { text: string; link: string }[] }[] = []
  for (const line of read('docs/guide/README.md').split('\n')) {
    const [, text] = /^## (.+)/.exec(line) ?? []
    if (text) groups.push({ text, items: [] })
    const [, label, name] = /^- \[(.+?)\]\((.+)\.md\)/.exec(line) ?? []
    if (name) groups.at(-1)?.items.push({ text: label, link: `/guide/${name}` })
  }
  const listed = new Set(groups.flatMap(({ items }) => items.map(({ link }) => link)))
  const missing = names('guide').filter((name) => name !== 'README' && !listed.has(`/guide/${name}`))
  if (missing.length > 0) throw new Error(`docs/guide/README.md does not list ${missing.join(', ')}`)
  return groups
}

function group(text: string, folder: string) {
  const items = (folder ? names(folder) : project).map((name) => {
    const file = folder ? `docs/${folder}/${name}.md` : `${name}.md`
    const [, heading = name] = /^# (.*)$/m.exec(read(file)) ?? []
    return { text: heading.replaceAll('`', ''), link: `/${folder ? `${folder}/` : ''}${name}` }
  })
  return { text, items }
}

function names(folder: string): string[] {
  const files = readdirSync(`${repository}docs/${folder}`).sort()
  return files.filter((name) => name.endsWith('.md')).map((name) => name.slice(0, -'.md'.length))
}

function read(file: string): string {
  return readFileSync(repository + file, 'utf8')
}
