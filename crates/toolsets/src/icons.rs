//! Icons of prompts and skills: line drawings in the color of the surrounding text.

use toolgate_contract::Icon;

/// Returns the icon of the toolset `prompts` or `skills`, as an inline SVG image. Returns no icon
/// for other toolsets, because the list of tools is sent to models.
pub fn for_toolset(toolset: &str) -> Vec<Icon> {
    let strokes = match toolset {
        "prompts" => "<path d='M4 5h16v11h-9l-4 4v-4H4zM8 9h8M8 12h5'/>",
        "skills" => "<path d='M12 6c-2-2-5-2-8-2v14c3 0 6 0 8 2 2-2 5-2 8-2V4c-3 0-6 0-8 2zv14'/>",
        _ => return Vec::new(),
    };
    vec![Icon::svg(&format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' width='24' height='24' \
         fill='none' stroke='currentColor' stroke-width='2'>{strokes}</svg>"
    ))]
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn every_toolset_has_a_small_icon_without_scripts() {
        for toolset in ["prompts", "skills"] {
            let icons = for_toolset(toolset);
            let source = icons[0].src.strip_prefix("data:image/svg+xml;base64,").unwrap();
            let source = String::from_utf8(STANDARD.decode(source).unwrap()).unwrap();
            assert!(source.len() <= 300, "{toolset}: {} bytes", source.len());
            assert!(source.starts_with("<svg ") && source.ends_with("</svg>"), "{source}");
            assert!(source.contains("currentColor") && !source.contains("script"), "{source}");
        }
    }
}
