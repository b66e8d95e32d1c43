//! Copies marked regions of the source into a Markdown page.
//!
//! A region of a source file lies between `// region: NAME` and `// endregion`. It replaces the
//! lines of the page between `<!-- code: FILE NAME -->` and `<!-- /code -->`.

use anyhow::{Context, bail};

/// Largest number of lines of a copied region, so that a reader can understand it at once.
const REGION_LINES_MAX: usize = 60;

/// Returns `page` with each marked block replaced by its region of source code. `read` returns the
/// text of a source file by its path.
pub(super) fn fill(
    page: &str,
    read: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut filled = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        filled.extend([line, "\n"]);
        let Some(place) = line.strip_prefix("<!-- code: ") else { continue };
        let place = place.strip_suffix(" -->").and_then(|place| place.split_once(' '));
        let (file, name) =
            place.with_context(|| format!("`{line}` is not `<!-- code: FILE NAME -->`"))?;
        let region = region(&read(file)?, name).with_context(|| file.to_owned())?;
        filled.extend(["```rust\n", &region, "```\n<!-- /code -->\n"]);
        if !lines.any(|line| line == "<!-- /code -->") {
            bail!("`{line}` is not followed by `<!-- /code -->`");
        }
    }
    Ok(filled)
}

/// Returns the lines of the region `name` in `source`, without their common indentation.
fn region(source: &str, name: &str) -> anyhow::Result<String> {
    let start = format!("// region: {name}");
    let mut lines = source.lines().skip_while(|line| line.trim() != start).skip(1);
    let mut region = Vec::new();
    loop {
        match lines.next() {
            Some(line) if line.trim() == "// endregion" => break,
            Some(line) => region.push(line),
            None => bail!("no region `{name}` from `{start}` to `// endregion`"),
        }
    }
    if region.len() > REGION_LINES_MAX {
        let length = region.len();
        bail!("the region `{name}` has {length} lines; shorten it to {REGION_LINES_MAX}");
    }
    let indents = region.iter().filter(|line| !line.trim().is_empty());
    let indent = indents.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    Ok(region.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or(""))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
mod a;
    // region: first
    fn f() {
        g();

    }
    // endregion
// region: second
h();
// endregion
";

    fn filled(page: &str) -> anyhow::Result<String> {
        fill(page, |file| match file {
            "a.rs" => Ok(SOURCE.to_owned()),
            "long.rs" => Ok(format!("// region: all\n{}// endregion\n", "f();\n".repeat(61))),
            other => bail!("no file {other}"),
        })
    }

    #[test]
    fn a_marked_block_becomes_the_region_without_its_indentation() {
        let page = "before\n<!-- code: a.rs first -->\nold\n<!-- /code -->\nafter\n";
        let new = "before\n<!-- code: a.rs first -->\n```rust\nfn f() {\n    g();\n\n}\n```\n\
                   <!-- /code -->\nafter\n";
        assert_eq!(filled(page).expect("it is filled"), new);
        assert_eq!(filled(new).expect("it is filled"), new);
    }

    #[test]
    fn a_page_without_blocks_is_unchanged() {
        assert_eq!(filled("a\n\nb\n").expect("nothing to fill"), "a\n\nb\n");
    }

    #[test]
    fn a_block_that_cannot_be_filled_is_an_error() {
        for page in [
            "<!-- code: a.rs third -->\n<!-- /code -->\n",
            "<!-- code: b.rs first -->\n<!-- /code -->\n",
            "<!-- code: a.rs -->\n<!-- /code -->\n",
            "<!-- code: a.rs first -->\nno end\n",
            "<!-- code: long.rs all -->\n<!-- /code -->\n",
        ] {
            assert!(filled(page).is_err(), "{page}");
        }
    }

    #[test]
    fn the_architecture_page_shows_the_code_as_it_is() {
        let page = super::super::architecture().expect("the page is filled");
        assert!(page.is_current(), "ARCHITECTURE.md is stale; run `cargo xtask codegen`");
    }
}
