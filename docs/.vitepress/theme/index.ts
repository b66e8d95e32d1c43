import { nextTick, onMounted, watch } from 'vue'
import { useRoute } from 'vitepress'
import Theme from 'vitepress/theme-without-fonts'
import './custom.css'

/** Draws the diagrams of the current page. The library is part of the site. */
async function draw() {
  const diagrams = document.querySelectorAll<HTMLElement>('pre.mermaid:not([data-processed])')
  if (diagrams.length === 0) return
  const { default: mermaid } = await import('@mermaid-js/tiny')
  const dark = document.documentElement.classList.contains('dark')
  mermaid.initialize({ startOnLoad: false, theme: dark ? 'dark' : 'neutral', securityLevel: 'strict' })
  await mermaid.run({ nodes: diagrams })
}

export default {
  extends: Theme,
  setup() {
    const route = useRoute()
    onMounted(draw)
    watch(() => route.path, () => nextTick(draw))
  },
}
