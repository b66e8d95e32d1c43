//! Writes `docs/reference/` from the code, or says which page is stale.

use anyhow::bail;

use crate::shell::{build, checkout, output};

/// Each page and the words that print it.
const PAGES: [(&str, &str); 5] = [
    ("config.md", "config"),
    ("config.schema.json", "config-schema"),
    ("tools.md", "tools"),
    ("metrics.md", "metrics"),
    ("cli.md", "cli"),
];

pub(crate) fn pages(check: bool) -> anyhow::Result<()> {
    build()?;
    let toolgate = checkout().join("target/debug/toolgate").display().to_string();
    let folder = checkout().join("docs/reference");
    std::fs::create_dir_all(&folder)?;
    let mut stale = Vec::new();
    for (name, page) in PAGES {
        let text = output(&toolgate, &["reference", page])?;
        let path = folder.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if check {
            stale.push(name);
        } else {
            std::fs::write(path, text)?;
            eprintln!("wrote docs/reference/{name}");
        }
    }
    if !stale.is_empty() {
        bail!("docs/reference is stale ({}); run `cargo xtask codegen`", stale.join(", "));
    }
    eprintln!("docs/reference is up to date");
    Ok(())
}
