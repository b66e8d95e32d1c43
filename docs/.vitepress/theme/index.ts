import { watch } from 'vue'
import { onContentUpdated, useData } from 'vitepress'
import Theme from 'vitepress/theme-without-fonts'
import { drawDiagrams } from './diagrams'
import './custom.css'

export default {
  extends: Theme,
  setup() {
    const { isDark } = useData()
    onContentUpdated(() => drawDiagrams(isDark.value))
    watch(isDark, drawDiagrams)
  },
}
