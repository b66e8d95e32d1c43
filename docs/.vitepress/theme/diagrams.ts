import source from '@mermaid-js/tiny/dist/mermaid.tiny.js?url'

interface Mermaid {
  initialize(options: object): void
  render(id: string, text: string): Promise<{ svg: string }>
}

let library: Promise<Mermaid> | undefined
let drawn = 0

/** Loads the library from the site. It is a script of its own, because bundling it takes long and gains nothing. */
function load(): Promise<Mermaid> {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement('script')
    script.src = source
    script.onload = () => resolve((globalThis as unknown as { mermaid: Mermaid }).mermaid)
    script.onerror = reject
    document.head.append(script)
  })
  return library
}

/** Draws the diagrams of the current page, again after the colors change. */
export async function drawDiagrams(dark: boolean) {
  const theme = dark ? 'dark' : 'neutral'
  const diagrams = document.querySelectorAll<HTMLElement>(`pre.mermaid:not([data-theme=${theme}])`)
  if (diagrams.length === 0) return
  const mermaid = await load()
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: 'strict',
    theme,
    themeVariables: { edgeLabelBackground: dark ? '#1b1b1f' : '#ffffff' },
  })
  for (const diagram of diagrams) {
    diagram.dataset.theme = theme
    diagram.dataset.source ??= diagram.textContent ?? ''
    const { svg } = await mermaid.render(`diagram-${++drawn}`, diagram.dataset.source)
    diagram.innerHTML = svg
    // A diagram that is much wider than the screen scrolls. Shrunk to the screen, it could not be read.
    const { style } = diagram.querySelector('svg')!
    style.minWidth = `calc(${style.maxWidth} * 0.7)`
  }
}
