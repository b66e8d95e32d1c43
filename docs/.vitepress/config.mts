// The site of toolgate's documentation. `cargo xtask docs` builds it and checks every link.
import { readdirSync } from 'node:fs'
import { defineConfig } from 'vitepress'

// Order of the guides. A page that is missing here fails the build.
const guides = [
  ['Start', ['get-started', 'team', 'macos-windows', 'connect', 'tools-overview']],
  ['Tools', ['commands', 'jobs', 'git-and-ci', 'search', 'search-engines', 'assets', 'resources', 'prompts-and-skills']],
  ['Gateway', ['gateway', 'upstream-transports', 'upstream-sign-in', 'upstream-features', 'upstream-results', 'pins', 'secrets']],
  ['Control', ['keys', 'sign-in', 'policy', 'confirmations', 'limits', 'sandbox', 'audit', 'telemetry', 'backup']],
  ['Help', ['troubleshooting', 'troubleshooting-http']],
  ['Protocols', ['mcp', 'mira', 'zyra', 'synesthetic', 'envelope', 'workstation', 'your-own-server']],
] as const

const title = (folder: string, name: string) => ({ link: `/${folder}/${name}` })
const pages = (folder: string) =>
  readdirSync(new URL(`../${folder}`, import.meta.url))
    .filter((name) => name.endsWith('.md'))
    .map((name) => name.slice(0, -3))
    .sort()

const listed = new Set<string>(guides.flatMap(([, names]) => names))
const unlisted = pages('guide').filter((name) => !listed.has(name))
if (unlisted.length > 0) throw new Error(`add to docs/.vitepress/config.mts: ${unlisted.join(', ')}`)

const heading = (folder: string, name: string): string => {
  const { readFileSync } = process.getBuiltinModule('node:fs')
  const text = readFileSync(new URL(`../${folder}/${name}.md`, import.meta.url), 'utf8')
  return /^# (.*)$/m.exec(text)?.[1].replaceAll('`', '') ?? name
}
const group = (text: string, folder: string, names: readonly string[], collapsed = false) => ({
  text,
  collapsed,
  items: names.map((name) => ({ ...title(folder, name), text: heading(folder, name) })),
})

export default defineConfig({
  title: 'toolgate',
  description: 'Tools for AI agents, and a gateway to MCP servers and command lines',
  // The pages of the repository's root belong to the site, too.
  srcDir: '..',
  srcExclude: [
    '**/node_modules/**', 'target/**', '.tools/**', 'crates/**', 'tests/**', 'bench/**', 'eval/**',
    'examples/**', 'fuzz/**', 'packs/**', 'xtask/**', 'STYLE.md',
  ],
  outDir: '../target/site',
  cacheDir: '../target/site-cache',
  rewrites: {
    'README.md': 'index.md',
    'docs/:folder/:page': ':folder/:page',
  },
  cleanUrls: false,
  lastUpdated: false,
  markdown: {
    config(md) {
      // Links to source files have no page. The text stays.
      const render = md.renderer.rules.link_open
      md.renderer.rules.link_open = (tokens, at, options, env, self) => {
        const href = (tokens[at].attrGet('href') ?? '').replace(
          /^\.\.\/\.\.\/(SECURITY|CONTRIBUTING|ARCHITECTURE|CHANGELOG)\.md/,
          '/$1.md',
        )
        tokens[at].attrSet('href', href)
        if (isSource(href)) {
          tokens[at].tag = 'span'
          tokens[at].attrs = [['class', 'source'], ['title', href.replace(/^(\.\.\/)+/, '')]]
          for (let close = at; close < tokens.length; close += 1) {
            if (tokens[close].type === 'link_close') {
              tokens[close].tag = 'span'
              break
            }
          }
          return self.renderToken(tokens, at, options)
        }
        return render ? render(tokens, at, options, env, self) : self.renderToken(tokens, at, options)
      }
      // `{{` in a text is no expression of Vue.
      for (const rule of ['text', 'code_inline'] as const) {
        const plain = md.renderer.rules[rule]!
        md.renderer.rules[rule] = (...words) => plain(...words).replaceAll('{{', '&#123;&#123;')
      }
      const fence = md.renderer.rules.fence!
      md.renderer.rules.fence = (tokens, at, options, env, self) =>
        tokens[at].info.trim() === 'mermaid'
          ? `<pre class="mermaid" v-pre>${md.utils.escapeHtml(tokens[at].content)}</pre>`
          : fence(tokens, at, options, env, self)
    },
  },
  ignoreDeadLinks: [/^https?:\/\/localhost/, (url: string) => isSource(url)],
  themeConfig: {
    search: { provider: 'local' },
    outline: 'deep',
    nav: [
      { text: 'Get started', link: '/guide/get-started' },
      { text: 'Troubleshooting', link: '/guide/troubleshooting' },
      { text: 'Settings', link: '/reference/config' },
    ],
    sidebar: [
      ...guides.map(([text, names]) => group(text, 'guide', names)),
      group('Reference', 'reference', pages('reference')),
      group('Design', 'design', pages('design'), true),
      {
        text: 'Project',
        items: [
          { text: 'Changelog', link: '/CHANGELOG' },
          { text: 'Security', link: '/SECURITY' },
          { text: 'Contributing', link: '/CONTRIBUTING' },
          { text: 'Architecture', link: '/ARCHITECTURE' },
        ],
      },
    ],
  },
})

function isSource(url: string): boolean {
  const path = url.replace(/^(\.{1,2}\/)+/, '/').replace(/^\/+/, '')
  return /^(crates|tests|bench|eval|examples|fuzz|packs|xtask|schemas|target|LICENSE|STYLE\.md|docs\/(guide|reference|design)\/?$|\.config|\.github|Cargo\.toml|clippy\.toml|deny\.toml)/.test(path)
}
