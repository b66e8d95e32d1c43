// How the site renders Markdown that is also read on GitHub: links, anchors and diagrams.
import { existsSync } from 'node:fs'
import { posix, relative } from 'node:path'
import type { MarkdownOptions, MarkdownRenderer } from 'vitepress'
import { downloads, pagePath, repository } from './pages.mjs'

export const markdown: MarkdownOptions = {
  anchor: { slugify },
  config(md) {
    renderLinks(md)
    renderFences(md)
    // `{{` in a text is no expression of Vue.
    for (const rule of ['text', 'code_inline'] as const) {
      const render = md.renderer.rules[rule]!
      md.renderer.rules[rule] = (...args) => render(...args).replaceAll('{{', '&#123;&#123;')
    }
  },
}

/** Returns the anchor that GitHub gives a heading, so that a link with an anchor works in both places. */
function slugify(heading: string): string {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc} -]/gu, '').replaceAll(' ', '-')
}

/** Makes links between files links between pages. A link to a source file, which has no page, becomes text. */
function renderLinks(md: MarkdownRenderer) {
  const render = md.renderer.rules.link_open!
  md.renderer.rules.link_open = (tokens, at, options, env, self) => {
    const href = tokens[at].attrGet('href') ?? ''
    if (/^(#|\/|[a-z][a-z+.-]*:)/i.test(href)) return render(tokens, at, options, env, self)

    const [, path, anchor = ''] = /^([^#]*)(#.*)?$/.exec(href)!
    const from = posix.dirname(relative(repository, env.realPath ?? env.path))
    const file = posix.join(from, decodeURI(path)).replace(/\/$/, '')
    const pages = [file, `${file}/README.md`].filter((it) => existsSync(repository + it)).map(pagePath)
    const target = pages.find(Boolean) ?? downloads.find((it) => `docs/${it}` === file)
    if (target) {
      tokens[at].attrSet('href', `/${target}${anchor}`)
    } else if (existsSync(repository + file)) {
      tokens[at].tag = 'span'
      tokens[at].attrs = [['class', 'source'], ['title', file]]
      const end = tokens.findIndex((token, index) => index > at && token.type === 'link_close')
      tokens[end].tag = 'span'
      return self.renderToken(tokens, at, options)
    }
    return render(tokens, at, options, env, self)
  }
}

/** Leaves diagrams to the theme, which draws them in the reader's browser. */
function renderFences(md: MarkdownRenderer) {
  const render = md.renderer.rules.fence!
  md.renderer.rules.fence = (tokens, at, options, env, self) =>
    tokens[at].info.trim() === 'mermaid'
      ? `<pre class="mermaid" v-pre>${md.utils.escapeHtml(tokens[at].content)}</pre>`
      : render(tokens, at, options, env, self)
}
