//! Writes `docs/reference/` and the code blocks in ARCHITECTURE.md from the source, or lists the
//! pages that are out of date.

mod code_blocks;
mod messages;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::shell::{build, checkout, output};

/// Generated pages of `docs/reference`, each with the argument of the command that prints the page.
const PAGES: [(&str, &str); 7] = [
    ("config.md", "config"),
    ("config.schema.json", "config-schema"),
    ("tools.md", "tools"),
    ("metrics.md", "metrics"),
    ("errors.md", "errors"),
    ("events.md", "events"),
    ("cli.md", "cli"),
];

/// Page of the documentation that is generated from the source: its path and text.
struct GeneratedPage {
    path: PathBuf,
    text: String,
}

impl GeneratedPage {
    /// Returns true if the file contains the generated text.
    fn is_current(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|old| old == self.text)
    }
}

/// Writes the pages that are out of date. If `check` is true, fails instead if there are any.
pub(crate) fn pages(check: bool) -> anyhow::Result<()> {
    build()?;
    let mut pages = vec![architecture()?];
    let toolgate = checkout().join("target/debug/toolgate").display().to_string();
    let folder = checkout().join("docs/reference");
    std::fs::create_dir_all(&folder)?;
    for (name, page) in PAGES {
        pages.push(GeneratedPage {
            path: folder.join(name),
            text: output(&toolgate, &["reference", page])?,
        });
    }
    pages.push(GeneratedPage { path: folder.join("messages.md"), text: messages::page()? });
    let stale: Vec<_> = pages.iter().filter(|page| !page.is_current()).collect();
    if check && !stale.is_empty() {
        let names: Vec<_> = stale.iter().map(|page| name_of(&page.path)).collect();
        bail!("generated pages are stale ({}); run `cargo xtask codegen`", names.join(", "));
    }
    for GeneratedPage { path, text } in stale {
        std::fs::write(path, text)?;
        eprintln!("wrote {}", name_of(path));
    }
    eprintln!("generated pages are up to date");
    Ok(())
}

/// Returns ARCHITECTURE.md with current copies of the code that it shows.
fn architecture() -> anyhow::Result<GeneratedPage> {
    let read = |file: &str| {
        std::fs::read_to_string(checkout().join(file)).with_context(|| file.to_owned())
    };
    let text = code_blocks::fill(&read("ARCHITECTURE.md")?, read)?;
    Ok(GeneratedPage { path: checkout().join("ARCHITECTURE.md"), text })
}

/// Returns the path of a page relative to the checkout.
fn name_of(path: &Path) -> String {
    path.strip_prefix(checkout()).unwrap_or(path).display().to_string()
}
