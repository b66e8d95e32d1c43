//! Builds the site of the documentation into `target/site`.

use crate::shell::{checkout, run};

/// Builds the site. A link to a page that does not exist fails the build.
pub(crate) fn build() -> anyhow::Result<()> {
    let docs = checkout().join("docs").display().to_string();
    run("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", &docs])?;
    run("npm", &["run", "build", "--prefix", &docs])?;
    eprintln!("the site is in target/site");
    Ok(())
}
