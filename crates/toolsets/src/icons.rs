//! Icons of the toolsets: line drawings in the color of the surrounding text.

use toolgate_contract::Icon;

/// Returns the icon of `toolset`, as an inline SVG image.
pub fn for_toolset(toolset: &str) -> Vec<Icon> {
    let strokes = match toolset {
        "files" => "<path d='M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6'/>",
        "exec" => {
            "<rect x='3' y='4' width='18' height='16' rx='2'/><path d='m7 9 3 3-3 3M12 15h5'/>"
        }
        "git" => {
            "<circle cx='6' cy='5' r='2'/><circle cx='6' cy='19' r='2'/><circle cx='18' cy='8' r='2'/>\
             <path d='M6 7v10M18 10c0 4-6 3-11 7'/>"
        }
        "ci" => "<circle cx='12' cy='12' r='9'/><path d='m8 12 3 3 5-6'/>",
        "jobs" => "<circle cx='12' cy='12' r='9'/><path d='M12 7v5l3 2'/>",
        "prompts" => "<path d='M4 5h16v11h-9l-4 4v-4H4zM8 9h8M8 12h5'/>",
        "skills" => "<path d='M12 6c-2-2-5-2-8-2v14c3 0 6 0 8 2 2-2 5-2 8-2V4c-3 0-6 0-8 2zv14'/>",
        "assets" => "<path d='M8 4c-3 0-1 7-4 8 3 1 1 8 4 8M16 4c3 0 1 7 4 8-3 1-1 8-4 8'/>",
        "search" => "<circle cx='11' cy='11' r='7'/><path d='m16 16 5 5M8 11h6'/>",
        "docs" => "<path d='M5 3h14v18H5zM9 8h6M9 12h6M9 16h3'/>",
        // Any other toolset is a pack of declared commands.
        _ => "<path d='M13 3 5 13h6l-1 8 8-10h-6z'/>",
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
        for toolset in [
            "files",
            "exec",
            "git",
            "ci",
            "jobs",
            "prompts",
            "skills",
            "assets",
            "search",
            "docs",
            "visualize",
        ] {
            let icons = for_toolset(toolset);
            let source = icons[0].src.strip_prefix("data:image/svg+xml;base64,").unwrap();
            let source = String::from_utf8(STANDARD.decode(source).unwrap()).unwrap();
            assert!(source.len() <= 300, "{toolset}: {} bytes", source.len());
            assert!(source.starts_with("<svg ") && source.ends_with("</svg>"), "{source}");
            assert!(source.contains("currentColor") && !source.contains("script"), "{source}");
        }
    }
}
