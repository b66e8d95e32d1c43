// The site of toolgate's documentation. `cargo xtask docs` builds and checks it.
import { copyFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { markdown } from './markdown.mjs'
import { downloads, pagePath, repository, sidebar } from './pages.mjs'
import { indexOptions, searchOptions } from './search-options.mjs'

export default defineConfig({
  title: 'toolgate',
  description: 'Tools for AI agents, and a gateway to MCP servers and command lines',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  // The pages of the repository's root belong to the site, too.
  srcDir: '..',
  srcExclude: [
    'target/**', '.tools/**', 'crates/**', 'tests/**', 'bench/**', 'eval/**', 'examples/**', 'fuzz/**', 'packs/**',
    'xtask/**', 'STYLE.md',
  ],
  rewrites: (file) => pagePath(file) ?? file,
  outDir: '../target/site',
  cacheDir: '../target/site-cache',
  markdown,
  vite: {
    // Looking for code that nothing uses takes a third of the build, and saves the reader a few kilobytes.
    build: { chunkSizeWarningLimit: 2000, rollupOptions: { treeshake: false } },
    plugins: [
      {
        // Pages at the root of the repository have no `node_modules` above them.
        name: 'vue-for-all-pages',
        enforce: 'pre',
        resolveId(id, _importer, options) {
          if (/^vue($|\/)/.test(id)) return this.resolve(id, fileURLToPath(import.meta.url), { ...options, skipSelf: true })
        },
      },
    ],
  },
  buildEnd({ outDir }) {
    for (const file of downloads) copyFileSync(`${repository}docs/${file}`, `${outDir}/${file}`)
  },
  ignoreDeadLinks: [/^https?:\/\/localhost/],
  themeConfig: {
    outline: 'deep',
    nav: [
      { text: 'Get started', link: '/guide/get-started' },
      { text: 'Guides', link: '/guide/' },
      { text: 'Troubleshooting', link: '/guide/troubleshooting' },
      { text: 'Settings', link: '/reference/config' },
    ],
    sidebar: sidebar(),
    search: {
      provider: 'local',
      options: {
        miniSearch: { options: indexOptions, searchOptions },
        // The list of guides would be a result for every word in a title.
        _render: (source, env, md) => (env.relativePath === 'docs/guide/README.md' ? '' : md.render(source, env)),
      },
    },
  },
})
